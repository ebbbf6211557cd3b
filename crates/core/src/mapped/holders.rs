//! The devices that stand on a device.
//!
//! A pool has thousands of them: one more costs the same however many there are.

use super::MappedDevice;
use std::collections::HashMap;
use std::sync::{Arc, Weak};

/// By their minor numbers, of which one that is in use has one device.
#[derive(Default)]
pub(super) struct Holders {
    known: HashMap<u32, Weak<MappedDevice>>,
    /// Those that are gone are looked for when there are so many.
    look_at: usize,
}

/// Fewer are not looked through.
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

    /// Those that are there.
    pub(super) fn now(&self) -> Vec<Arc<MappedDevice>> {
        let mut all: Vec<_> = self.known.values().filter_map(Weak::upgrade).collect();
        // In one order, as a simulation that is to be replayed needs it.
        all.sort_unstable_by_key(|md| md.devt().minor);
        all
    }
}
