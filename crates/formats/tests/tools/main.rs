//! The tools for a pool's metadata, one battery against Debian's, and what they make of damage.

mod battery;
mod damage;
mod support;
mod xml;
