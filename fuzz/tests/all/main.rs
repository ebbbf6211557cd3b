//! The fuzzer from outside, in one program.

mod driver;
mod smoke;
