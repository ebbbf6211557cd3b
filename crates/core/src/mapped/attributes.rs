//! What is shown of a device and is not in the ioctls.

use super::{MappedDevice, lock};
use crate::{TableSlot, Totals};
use std::collections::BTreeMap;
use std::ops::AddAssign;
use udm_base::SECTOR_SIZE;
use udm_io::BlockDevice;

/// The kernel's read-ahead of a disk that asks for none: 128 KiB (`VM_READAHEAD_PAGES`, `include/linux/mm.h`, 6.12).
const READ_AHEAD_BYTES: u64 = 128 << 10;

/// Writes of zeroes that were completed without allocating what they would have filled.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ZeroSkips {
    /// The bios.
    pub bios: u64,
    /// Their bytes.
    pub bytes: u64,
}

impl AddAssign for ZeroSkips {
    fn add_assign(&mut self, other: Self) {
        self.bios += other.bios;
        self.bytes += other.bytes;
    }
}

/// How polls of a device's bios went, by how many queues each had to look at.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Polls {
    /// The one queue that the cookie names: the bio was not split.
    pub fast: u64,
    /// The queues of this CPU: it was split, and its submitter stayed where it was.
    pub sub: u64,
    /// All queues.
    pub default: u64,
}

impl AddAssign for Polls {
    fn add_assign(&mut self, other: Self) {
        self.fast += other.fast;
        self.sub += other.sub;
        self.default += other.default;
    }
}

impl MappedDevice {
    /// What the targets of the active table skipped since it was loaded.
    pub fn zero_skips(&self) -> ZeroSkips {
        let mut sum = ZeroSkips::default();
        if let Some(table) = self.table(TableSlot::Active) {
            table.each(|target| sum += target.zero_skips());
        }
        sum
    }

    /// The polls that the targets of the active table saw since it was loaded.
    pub fn polls(&self) -> Polls {
        let mut sum = Polls::default();
        if let Some(table) = self.table(TableSlot::Active) {
            table.each(|target| sum += target.polls());
        }
        sum
    }

    /// Changes an option of the active table's targets. `None`: none has it, or not with that value.
    pub fn set_target_option(&self, key: &str, value: &str) -> Option<()> {
        let table = self.table(TableSlot::Active)?;
        let set = table.targets().filter_map(|target| target.set_option(key, value)).count();
        if set > 0 {
            lock(&self.target_options).insert(key.to_owned(), value.to_owned());
        }
        (set > 0).then_some(())
    }

    /// The options of targets that were set, the last value of each.
    pub fn target_options(&self) -> BTreeMap<String, String> {
        lock(&self.target_options).clone()
    }

    /// Goes on counting where another process that had this device left off: what it did, and its events. For a device
    /// that nobody uses yet.
    pub fn carry(&self, did: Totals, events: u32) {
        lock(&self.paths).gone += did;
        self.events.carry(events);
    }

    /// The read-ahead that tools show, in sectors: what was set, or as the kernel derives it, twice the optimal I/O
    /// size but at least 128 KiB (`blk_apply_bdi_limits`, `block/blk-settings.c`, 6.12). udm itself never reads ahead.
    pub fn read_ahead(&self) -> u32 {
        let derived = || (2 * u64::from(self.limits().io_opt)).max(READ_AHEAD_BYTES) / SECTOR_SIZE as u64;
        lock(&self.options).read_ahead.unwrap_or_else(|| derived() as u32)
    }

    /// Sets the read-ahead that tools show; `None` derives it.
    pub fn set_read_ahead(&self, sectors: Option<u32>) {
        lock(&self.options).read_ahead = sectors;
    }

    /// The read-ahead that was set.
    pub fn chosen_read_ahead(&self) -> Option<u32> {
        lock(&self.options).read_ahead
    }
}
