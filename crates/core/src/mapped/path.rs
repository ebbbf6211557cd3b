//! A compiled path: several mapped devices passed in one step, with one set of counters for all of them.

use super::MappedDevice;
use crate::Totals;
use crate::counters::PerChannel;
use crate::table::Table;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

/// Counts for every device that it stands for: each adds the path's numbers to its own when asked.
pub(crate) struct Path {
    pub(crate) counters: PerChannel,
    /// The devices passed by pure address arithmetic, from the top.
    runs: Vec<Weak<MappedDevice>>,
    /// The device whose target ends the path, if it does not end at a device that maps nothing.
    terminal: Option<Weak<MappedDevice>>,
    /// Keeps targets and devices while bios of the path are in flight.
    _tables: Vec<Arc<Table>>,
    retired: AtomicBool,
}

impl Path {
    pub(super) fn new(
        runs: Vec<Weak<MappedDevice>>,
        terminal: Option<Weak<MappedDevice>>,
        tables: Vec<Arc<Table>>,
    ) -> Self {
        Self { counters: PerChannel::new(), runs, terminal, _tables: tables, retired: AtomicBool::new(false) }
    }

    /// Every device that the path stands for.
    pub(super) fn devices(&self) -> impl Iterator<Item = Arc<MappedDevice>> {
        self.runs.iter().chain(&self.terminal).filter_map(Weak::upgrade)
    }

    /// The device that bios of the path arrive at.
    pub(super) fn top(&self) -> Option<Arc<MappedDevice>> {
        self.runs.first().and_then(Weak::upgrade)
    }

    /// What the path did in the name of `md`.
    pub(super) fn totals_of(&self, md: &MappedDevice) -> Totals {
        let totals = self.counters.totals();
        let is = |other: &Weak<MappedDevice>| std::ptr::eq(other.as_ptr(), md);
        // Passing a run is a remap; a terminal target counts its own.
        if self.runs.iter().any(is) { Totals { remapped: totals.reads + totals.writes, ..totals } } else { totals }
    }

    /// No plan leads here any more, and the grace period is over.
    pub(super) fn retire(&self) {
        self.retired.store(true, Ordering::Release);
    }

    /// Whether nothing will be counted here again.
    pub(super) fn is_done(&self) -> bool {
        self.retired.load(Ordering::Acquire) && self.counters.in_flight() == 0
    }
}
