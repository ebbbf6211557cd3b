//! Devices that could not be made again: they have an error table, and are told from others by it.

use super::late::LateDevices;
use super::state::TableState;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use udm_core::{MappedDevice, Table, TableSlot};

/// What there is to know of one.
#[derive(Clone)]
pub(crate) struct Lost {
    /// Why, for people.
    pub(crate) reason: String,
    /// The table that it had.
    pub(crate) was: TableState,
}

/// The table in the place of the device's own, which is not held here: a removal waits until nobody else has it. And
/// the rest.
type Entry = (Option<Weak<Table>>, Lost);

/// Those that are lost, by their minors. A device is until it gets another table, or goes.
#[derive(Default)]
pub(crate) struct LostDevices {
    lost: Mutex<BTreeMap<u32, Entry>>,
    late: LateDevices,
}

impl LostDevices {
    /// Devices that may yet be made.
    pub(crate) fn late(&self) -> &LateDevices {
        &self.late
    }

    /// Notes that the device is lost, with the table that it has now in the place of its own.
    pub(crate) fn add(&self, md: &MappedDevice, lost: Lost) {
        let mut all = self.lost.lock().unwrap_or_else(PoisonError::into_inner);
        all.insert(md.devt().minor, (md.table(TableSlot::Active).as_ref().map(Arc::downgrade), lost));
    }

    /// Why the device is lost, if it is.
    pub(crate) fn of(&self, md: &MappedDevice) -> Option<Lost> {
        let mut all = self.lost.lock().unwrap_or_else(PoisonError::into_inner);
        let (table, lost) = all.get(&md.devt().minor)?;
        let same = match (table, md.table(TableSlot::Active)) {
            (Some(then), Some(now)) => then.ptr_eq(&Arc::downgrade(&now)),
            (None, None) => true,
            _ => false,
        };
        if same {
            return Some(lost.clone());
        }
        all.remove(&md.devt().minor);
        None
    }
}
