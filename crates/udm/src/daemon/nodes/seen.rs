//! What of a device its node follows.

use crate::exports::is_read_only;
use udm_core::{MappedDevice, TableSlot};
use udm_io::{BlockDevice, Limits};

/// What of a device its node depends on.
#[derive(Clone, Copy, PartialEq)]
pub(super) struct Seen {
    pub(super) sectors: u64,
    pub(super) read_only: bool,
    pub(super) limits: Limits,
}

impl Seen {
    pub(super) fn of(md: &MappedDevice) -> Self {
        Self { sectors: md.sectors().get(), read_only: is_read_only(md), limits: md.limits() }
    }
}

/// Whether requests to the device wait for a resume: its own, or of what is beneath.
pub(super) fn is_held(md: &MappedDevice) -> bool {
    let table = md.table(TableSlot::Active);
    let beneath = table.iter().flat_map(|table| table.devices().iter());
    md.info().suspended || beneath.filter_map(|dev| dev.as_any().downcast_ref()).any(is_held)
}
