//! A device held open.

use crate::MappedDevice;
use std::ops::Deref;
use std::sync::Arc;

/// Keeps a mapped device open, as an open node does: it counts in `Open count`, and while it lasts the device is not
/// removed, or only once it is dropped when the removal was deferred.
pub struct OpenDevice(Arc<MappedDevice>);

impl OpenDevice {
    pub(crate) fn new(md: Arc<MappedDevice>) -> Self {
        Self(md)
    }

    /// The device, for attaching to a channel.
    pub fn device(&self) -> &Arc<MappedDevice> {
        &self.0
    }
}

impl Deref for OpenDevice {
    type Target = MappedDevice;
    fn deref(&self) -> &MappedDevice {
        &self.0
    }
}

impl Drop for OpenDevice {
    fn drop(&mut self) {
        self.0.closed();
    }
}
