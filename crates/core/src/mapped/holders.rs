//! The devices that stand on a device.
//!
//! A pool can have thousands of them, so adding one costs the same however many there are.

use super::MappedDevice;
use std::collections::HashMap;
use std::sync::{Arc, Weak};

/// By their minor numbers: a number in use belongs to one device.
#[derive(Default)]
pub(super) struct Holders {
    known: HashMap<u32, Weak<MappedDevice>>,
    /// When there are so many, those that are gone are removed.
    look_at: usize,
}

/// With fewer than this, none are looked for.
const FEW: usize = 16;

impl Holders {
    /// Notes a device, if it is not known.
    pub(super) fn add(&mut self, md: &Arc<MappedDevice>) {
        self.known.insert(md.devt().minor, Arc::downgrade(md));
        if self.known.len() > self.look_at.max(FEW) {
            self.known.retain(|_, md| md.strong_count() > 0);
            self.look_at = 2 * self.known.len();
        }
    }

    /// The devices that still exist.
    pub(super) fn now(&self) -> Vec<Arc<MappedDevice>> {
        let mut all: Vec<_> = self.known.values().filter_map(Weak::upgrade).collect();
        // In a fixed order, so that a simulation can be replayed.
        all.sort_unstable_by_key(|md| md.devt().minor);
        all
    }
}
