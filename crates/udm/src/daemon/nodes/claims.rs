//! Nodes that somebody has to himself; see [shared](super::shared).

use std::sync::Arc;
use udm_core::MappedDevice;

/// The claims that are out.
#[derive(Default)]
pub(super) struct Claims {
    /// With a text of what is being done.
    pub(super) out: Vec<(Arc<MappedDevice>, &'static str)>,
    /// No more claims are given.
    pub(super) ended: bool,
}

impl Claims {
    /// What is being done with the device's node.
    pub(super) fn of(&self, md: &Arc<MappedDevice>) -> Option<&'static str> {
        self.out.iter().find(|(other, _)| Arc::ptr_eq(other, md)).map(|(_, what)| *what)
    }
}

/// The error for a node that is claimed by another thread.
pub(super) fn busy(md: &MappedDevice, what: &str) -> String {
    let name = md.device_name();
    format!(
        "the node of {name} is being {what}, which waits for {name}: if it is suspended, or what it is on, resume that"
    )
}
