//! The whole program with real input: devices of every kind, made by the command line, served by the daemon, and used
//! by programs that nobody here wrote. What is not installed is skipped, and said.

mod bad_nodes;
mod book;
mod claims;
mod disks;
mod experiments;
mod ext4;
mod hardship;
mod idle;
mod kinds;
mod lab;
mod matrix;
mod own_writes;
mod postgres;
mod programs;
mod refusals;
mod replace;
mod stacks;
mod swaps;
mod udm;
