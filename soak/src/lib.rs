//! A soak: random operations from several threads on one daemon, under a load that knows what it must read.
//!
//! It exists to find what no test asks for: hangs, leaks and wrong bytes that need several things at once. README.md
//! beside this crate tells how to use it and how to add an operation. It looks at the daemon from outside only.

pub mod client;
pub mod content;
pub mod daemon;
pub mod liar;
pub mod load;
pub mod model;
pub mod operations;
pub mod options;
pub mod report;
pub mod run;
pub mod rush;
pub mod stacks;
pub mod stats;
pub mod volume;
pub mod watch;
pub mod world;
