//! What is simulated, from outside, in one program.
#![allow(clippy::undocumented_unsafe_blocks)]

mod device;
mod model;
mod rotating;
