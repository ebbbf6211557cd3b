//! Devices whose requests wait.

use udm_core::{MappedDevice, TableSlot};

/// Whether requests to the device wait for a resume: its own, or of what is beneath.
pub(super) fn is_held(md: &MappedDevice) -> bool {
    let table = md.table(TableSlot::Active);
    let beneath = table.iter().flat_map(|table| table.devices().iter());
    md.info().suspended || beneath.filter_map(|dev| dev.as_any().downcast_ref()).any(is_held)
}
