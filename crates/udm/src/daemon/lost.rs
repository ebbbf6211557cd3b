//! Devices that are not what they are to be: those that could not be made again, which have an error table and are told
//! from others by it, and those that are still to be made.

use super::state::{DeviceState, TableState};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use udm_core::{MappedDevice, Table, TableSlot};

/// A lost device.
#[derive(Clone)]
pub(crate) struct Lost {
    /// Why, for people.
    pub(crate) reason: String,
    /// The table that it had.
    pub(crate) was: TableState,
}

/// The error table, weakly referenced, since a removal waits until nobody else has it; and the rest.
type Entry = (Option<Weak<Table>>, Lost);

/// The lost devices, by minor. A device is lost until it gets another table or is removed.
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

/// The devices that are still to be made, by their minors: what the state has of them.
#[derive(Default)]
pub(crate) struct LateDevices(Mutex<BTreeMap<u32, Late>>);

struct Late {
    md: Arc<MappedDevice>,
    state: DeviceState,
    /// A table that it has is ours.
    making: bool,
}

impl LateDevices {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<u32, Late>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the device is to be, if that is still to come.
    pub(crate) fn of(&self, md: &MappedDevice) -> Option<DeviceState> {
        let all = self.lock();
        let late = all.get(&md.devt().minor).filter(|late| std::ptr::eq(&raw const *late.md, md))?;
        (late.making || !has_table(md)).then(|| late.state.clone())
    }

    /// The device is to be made later.
    pub(crate) fn put_off(&self, md: &Arc<MappedDevice>, state: &DeviceState) {
        let late = Late { md: md.clone(), state: state.clone(), making: false };
        self.lock().insert(state.minor, late);
    }

    /// A table that it has from now on is ours.
    pub(crate) fn making(&self, minor: u32) {
        self.lock().entry(minor).and_modify(|late| late.making = true);
    }

    /// It is what it was to be, or is left as it is.
    pub(crate) fn done(&self, minor: u32) {
        self.lock().remove(&minor);
    }

    /// The names of all.
    pub(crate) fn names(&self) -> Vec<String> {
        self.lock().values().map(|late| late.state.name.clone()).collect()
    }
}

/// Whether the device has a table, active or not.
pub(crate) fn has_table(md: &MappedDevice) -> bool {
    [TableSlot::Active, TableSlot::Inactive].into_iter().any(|slot| md.table(slot).is_some())
}
