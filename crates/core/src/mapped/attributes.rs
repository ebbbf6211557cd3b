//! What is shown of a device and is not in the ioctls.

use super::{MappedDevice, NO_BUDGET, lock};
use crate::{Error, TableSlot, Totals};
use std::collections::BTreeMap;
use std::ops::AddAssign;
use std::sync::atomic::Ordering;
use udm_base::{Errno, SECTOR_SIZE};
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

/// Bios of a device that were polled for, by which queues were looked into.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Polls {
    /// The one queue that the cookie names: the bio was not split.
    pub fast: u64,
    /// The queues of its channel: it was split, and its submitter stayed where it was.
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
            table.attributes().for_each(|attributes| sum += attributes.zero_skips());
        }
        sum
    }

    /// Whether bios may be polled for where every device beneath can be (`queue/io_poll` of the kernel's sysfs).
    pub fn io_poll(&self) -> bool {
        self.options().io_poll
    }

    /// Changes [`io_poll`](Self::io_poll), also with bios in flight: they complete as they were submitted. Fails when a
    /// device beneath cannot be polled, as `queue_poll_store` (`block/blk-sysfs.c`, 6.12) does, and says which.
    pub fn set_io_poll(&self, on: bool) -> Result<(), Error> {
        if let Some(name) = self.unpolled().filter(|_| on) {
            return Err(Error::new(Errno::EINVAL, format!("io_poll=1: {name} cannot be polled")));
        }
        lock(&self.options).io_poll = on;
        self.replan_all();
        Ok(())
    }

    /// A device beneath, or this one, that cannot be polled, io_poll of this one aside.
    fn unpolled(&self) -> Option<String> {
        let Some(table) = self.table(TableSlot::Active) else { return Some(self.device_name()) };
        let target = &table.placed().iter().find(|p| !p.capabilities.can_poll())?.capabilities;
        let beneath = target.devices.iter().find(|d| !d.dev.can_poll());
        Some(match beneath.map(|d| (d.dev.as_any().downcast_ref::<Self>(), d)) {
            Some((Some(md), _)) if md.io_poll() => md.unpolled().unwrap_or_else(|| md.device_name()),
            Some((Some(md), _)) => format!("{}, whose io_poll is 0,", md.device_name()),
            Some((None, d)) => d.dev.name(),
            None => self.device_name(),
        })
    }

    /// How long adaptive channels poll for its bios before they sleep, in microseconds, when it was set.
    pub fn chosen_poll_budget(&self) -> Option<u32> {
        u32::try_from(self.poll_budget.load(Ordering::Relaxed)).ok()
    }

    /// Sets how long adaptive channels poll for its bios before they sleep, in microseconds; `None`: as the domain
    /// says.
    pub fn set_poll_budget(&self, us: Option<u32>) {
        self.poll_budget.store(us.map_or(NO_BUDGET, u64::from), Ordering::Relaxed);
    }

    /// Changes an option of the active table's targets. `None`: none has it, or not with that value.
    pub fn set_target_option(&self, key: &str, value: &str) -> Option<()> {
        let table = self.table(TableSlot::Active)?;
        let set = table.attributes().filter_map(|attributes| attributes.set_option(key, value)).count();
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
