//! Background work: the keeper and kcopyd, over the system's threads and in the simulated world.
#![allow(clippy::undocumented_unsafe_blocks, clippy::vec_box)]

mod kcopyd;
mod keeper;
mod simulated_kcopyd;
mod simulated_keeper;
