//! The support that the tests of every crate share: waiting for a condition or for a thread to sleep, programs that may
//! not be installed, and a setting of the kernel. It does not depend on udm, so the tests of any crate can use it.

mod asleep;
mod fuse_uring;
mod program;
mod wait;

pub use asleep::{GoingToSleep, Sleeper};
pub use fuse_uring::FuseUring;
pub use program::{SEARCH_PATH, installed};
pub use wait::{eventually, until};
