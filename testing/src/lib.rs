//! What the tests of every crate share: waiting for something to hold or somebody to sleep, programs that may not be
//! installed, and a switch of the kernel's. It knows nothing of udm, so that the tests of any crate can have it.

mod asleep;
mod fuse_uring;
mod program;
mod wait;

pub use asleep::{GoingToSleep, Sleeper};
pub use fuse_uring::FuseUring;
pub use program::{SEARCH_PATH, installed};
pub use wait::{eventually, until};
