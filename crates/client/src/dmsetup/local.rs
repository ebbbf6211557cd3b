//! Ioctls to a registry in this process: what `udm run` and the library make their devices by.

use super::transport::{DmTransport, IoctlError, outcome};
use std::path::PathBuf;
use udm_control::handler::{Caller, handle};
use udm_core::Registry;

/// A transport without a socket.
pub struct LocalTransport {
    registry: Registry,
    cwd: PathBuf,
    said: String,
}

impl LocalTransport {
    /// To that registry; relative paths in tables begin at `cwd`.
    pub fn new(registry: &Registry, cwd: PathBuf) -> Self {
        Self { registry: registry.clone(), cwd, said: String::new() }
    }
}

impl DmTransport for LocalTransport {
    fn ioctl(&mut self, cmd: u32, buf: &mut Vec<u8>) -> Result<(), IoctlError> {
        let caller = Caller { cwd: &self.cwd, cancel: &|| false, reap: &|| () };
        self.said = outcome(handle(&self.registry, &caller, cmd, buf).answer, buf)?;
        Ok(())
    }

    fn said(&mut self) -> String {
        std::mem::take(&mut self.said)
    }
}
