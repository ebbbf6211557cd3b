//! The formats on disk from outside, in one program.

mod goldens;
mod snapshot;
mod thin;
mod tools;
