//! Background work: the workqueue and kcopyd, over the system's threads and in the simulated world.
#![allow(clippy::undocumented_unsafe_blocks, clippy::vec_box)]

mod kcopyd;
mod simulated_kcopyd;
mod simulated_workqueue;
mod workqueue;
