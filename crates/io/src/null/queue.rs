//! What a null device does with polled bios: each is done when its time has come, and not before somebody asks.

use crate::Bio;
use crate::Nanos;
use crate::polling::{Batch, Driver};
use std::collections::VecDeque;

/// A queue's bios, oldest first. The free word of each is when it is due.
#[derive(Default)]
pub(super) struct NullQueue(VecDeque<Bio>);

impl Driver for NullQueue {
    #[inline]
    fn take_in(&mut self, bio: Bio) {
        self.0.push_back(bio);
    }

    #[inline]
    fn reap(&mut self, now: Nanos, batch: &mut Batch) {
        while !batch.is_full() && self.0.front().is_some_and(|bio| bio.word() <= now.0) {
            self.0.pop_front().into_iter().for_each(|bio| batch.push(bio));
        }
    }
}
