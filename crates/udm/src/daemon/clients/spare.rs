//! Descriptors that are kept for when there are no others: with one that is closed a client can be accepted.
//!
//! # Invariants
//! - They have the lowest numbers that could be had. A limit that comes down takes away the numbers from there on, so
//!   that one with a high number would give room to nobody then.
//! - A client's descriptor becomes one of them without being free in between: others wait for every descriptor that
//!   gets free.

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::{DupFlags, dup3, fcntl_dupfd_cloexec};
use std::os::fd::{AsRawFd, OwnedFd};

/// So many.
pub(super) const KEPT: usize = 16;

pub(super) struct Spare {
    /// What the others are copies of. It is never given up.
    model: OwnedFd,
    /// The one with the lowest number last.
    kept: Vec<OwnedFd>,
}

impl Spare {
    /// As many as there should be, or as can be had.
    pub(super) fn new() -> Result<Self, rustix::io::Errno> {
        let mut spare = Self { model: eventfd(0, EventfdFlags::CLOEXEC)?, kept: Vec::new() };
        spare.fill();
        Ok(spare)
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.kept.len()
    }

    /// Keeps as many as there should be; false when they cannot be had.
    pub(super) fn fill(&mut self) -> bool {
        while self.kept.len() < KEPT {
            match fcntl_dupfd_cloexec(&self.model, 0) {
                Ok(fd) => self.keep(fd),
                Err(_) => return false,
            }
        }
        self.sink();
        true
    }

    /// Keeps this one, which is closed as what it was; or closes it when there are enough.
    pub(super) fn recycle(&mut self, mut fd: OwnedFd) {
        if self.kept.len() < KEPT && dup3(&self.model, &mut fd, DupFlags::CLOEXEC).is_ok() {
            self.keep(fd);
        }
    }

    /// Gives one up; false when there is none.
    pub(super) fn give_up(&mut self) -> bool {
        self.kept.pop().is_some()
    }

    fn keep(&mut self, fd: OwnedFd) {
        let at = self.kept.partition_point(|other| other.as_raw_fd() > fd.as_raw_fd());
        self.kept.insert(at, fd);
    }

    /// Moves those with high numbers to lower ones that are free.
    fn sink(&mut self) {
        while let Some(highest) = self.kept.first() {
            match fcntl_dupfd_cloexec(&self.model, 0) {
                Ok(lower) if lower.as_raw_fd() < highest.as_raw_fd() => {
                    self.kept.remove(0);
                    self.keep(lower);
                }
                _ => return,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Other tests of this process open and close descriptors meanwhile: nothing here depends on which numbers are
    /// free.
    #[test]
    fn they_are_kept_in_order() {
        let mut spare = Spare::new().unwrap();
        let sorted = |spare: &Spare| spare.kept.is_sorted_by_key(|fd| std::cmp::Reverse(fd.as_raw_fd()));
        assert_eq!((spare.kept.len(), sorted(&spare)), (KEPT, true));
        assert!(spare.give_up() && spare.give_up());
        let (mut reader, writer) = std::io::pipe().unwrap();
        let number = writer.as_raw_fd();
        spare.recycle(writer.into());
        assert!(spare.kept.iter().any(|fd| fd.as_raw_fd() == number), "the same number is kept");
        assert_eq!(std::io::Read::read(&mut reader, &mut [0]).unwrap(), 0, "what it was is closed");
        assert_eq!((spare.kept.len(), sorted(&spare)), (KEPT - 1, true));
        assert!(spare.fill());
        spare.recycle(reader.into());
        assert_eq!((spare.kept.len(), sorted(&spare)), (KEPT, true));
        for _ in 0..KEPT {
            assert!(spare.give_up());
        }
        assert!(!spare.give_up());
    }
}
