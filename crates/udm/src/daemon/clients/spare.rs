//! Descriptors that are kept for when there are no others: with one that is closed a client can be accepted.

use rustix::event::{EventfdFlags, eventfd};
use std::os::fd::OwnedFd;

/// So many.
const KEPT: usize = 16;

#[derive(Default)]
pub(super) struct Spare(Vec<OwnedFd>);

impl Spare {
    /// Keeps as many as there should be; false when they cannot be had.
    pub(super) fn fill(&mut self) -> bool {
        while self.0.len() < KEPT {
            match eventfd(0, EventfdFlags::CLOEXEC) {
                Ok(fd) => self.0.push(fd),
                Err(_) => return false,
            }
        }
        true
    }

    /// Gives one up; false when there is none.
    pub(super) fn give_up(&mut self) -> bool {
        self.0.pop().is_some()
    }
}
