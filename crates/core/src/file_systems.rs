//! File systems on the nodes of mapped devices, which a suspension freezes and a resume thaws (`lock_fs` and
//! `unlock_fs`, `drivers/md/dm.c`, 6.12).

use crate::registry::RegistryCore;
use crate::{Error, MappedDevice, Registry};
use std::sync::Arc;

/// The part of a program that knows the nodes, and what is mounted on them.
pub trait FileSystems: Send + Sync {
    /// Has the file systems on a device's node write what they keep, and hold back what is new. Blocks on the device,
    /// which still serves. One that somebody has frozen already stays as it is, and is left so by [`thaw`](Self::thaw).
    ///
    /// # Errors
    /// What the file system says, when it cannot write.
    fn freeze(&self, md: &MappedDevice) -> Result<(), Error>;

    /// Lets those go on that [`freeze`](Self::freeze) has frozen. Blocks on the device, which serves again.
    fn thaw(&self, md: &MappedDevice);
}

impl Registry {
    /// Tells who freezes what is on the devices. Only the first call counts.
    pub fn set_file_systems(&self, file_systems: Arc<dyn FileSystems>) {
        let _ = self.core().file_systems.set(file_systems);
    }
}

impl RegistryCore {
    pub(crate) fn freeze(&self, md: &MappedDevice) -> Result<(), Error> {
        self.file_systems.get().map_or(Ok(()), |on| on.freeze(md))
    }

    pub(crate) fn thaw(&self, md: &MappedDevice) {
        self.file_systems.get().into_iter().for_each(|on| on.thaw(md));
    }
}
