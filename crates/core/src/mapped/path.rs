//! A compiled path: several mapped devices passed in one step, with one set of counters for all of them.

use super::MappedDevice;
use crate::counters::PerChannel;
use crate::table::Table;
use crate::{Failed, Totals};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use udm_base::Sector;
use udm_io::Status;

/// Counts for every device that it stands for: each adds the path's numbers to its own when asked.
pub(crate) struct Path {
    pub(crate) counters: PerChannel,
    /// The devices passed by pure address arithmetic, from the top.
    runs: Vec<Weak<MappedDevice>>,
    /// The device whose target ends the path, if it does not end at a device that maps nothing.
    terminal: Option<Weak<MappedDevice>>,
    /// The tables of all these devices, in their order. They keep targets and devices while bios are in flight.
    tables: Vec<Arc<Table>>,
    retired: AtomicBool,
}

impl Path {
    pub(super) fn new(
        runs: Vec<Weak<MappedDevice>>,
        terminal: Option<Weak<MappedDevice>>,
        tables: Vec<Arc<Table>>,
    ) -> Self {
        Self { counters: PerChannel::new(), runs, terminal, tables, retired: AtomicBool::new(false) }
    }

    /// Every device that the path stands for.
    pub(super) fn devices(&self) -> impl Iterator<Item = Arc<MappedDevice>> {
        self.runs.iter().chain(&self.terminal).filter_map(Weak::upgrade)
    }

    /// The device that bios of the path arrive at.
    pub(super) fn top(&self) -> Option<Arc<MappedDevice>> {
        self.runs.first().and_then(Weak::upgrade)
    }

    /// Whether a suspension of the last device wants back the bios that its target cannot serve now.
    pub(super) fn wants_back(&self) -> bool {
        let last = self.terminal.as_ref().and_then(Weak::upgrade);
        last.is_some_and(|md| md.noflush.load(Ordering::Acquire))
    }

    /// Tells the target of each device that a bio at `sector` of the first one failed.
    #[cold]
    pub(super) fn note_error(&self, mut sector: Sector, status: Status) {
        for (md, table) in self.runs.iter().chain(&self.terminal).zip(&self.tables) {
            let placed = table.find(sector);
            let at = sector - placed.begin;
            if placed.target.failed(Failed::At(at), status)
                && let Some(md) = md.upgrade()
            {
                md.event();
            }
            let Some((_, beneath, _)) = placed.capabilities.locate(at) else { return };
            sector = beneath;
        }
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
