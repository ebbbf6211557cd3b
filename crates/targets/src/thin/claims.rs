//! Which devices are a pool's, so that no other pool takes them. Files and the host's devices are opened exclusively,
//! mapped devices are not.

use std::sync::{Arc, Mutex, PoisonError};
use udm_io::BlockDevice;

/// The devices of every pool that is open, being opened or being closed, by their addresses: the numbers of mapped
/// devices are given by each registry anew.
static CLAIMED: Mutex<Vec<usize>> = Mutex::new(Vec::new());

/// A pool's metadata and data device are its own until this is dropped. Who has it holds the devices, too.
pub(super) struct Claim([usize; 2]);

impl Claim {
    /// Claims devices, or tells which of them is another's already: by its place.
    pub(super) fn new(devices: [&Arc<dyn BlockDevice>; 2]) -> Result<Self, usize> {
        let devices = devices.map(|dev| Arc::as_ptr(dev).addr());
        let mut claimed = CLAIMED.lock().unwrap_or_else(PoisonError::into_inner);
        match devices.iter().position(|dev| claimed.contains(dev)) {
            Some(taken) => Err(taken),
            None => {
                claimed.extend(devices);
                Ok(Self(devices))
            }
        }
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        CLAIMED.lock().unwrap_or_else(PoisonError::into_inner).retain(|dev| !self.0.contains(dev));
    }
}
