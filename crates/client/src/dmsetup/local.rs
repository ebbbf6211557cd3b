//! Ioctls to a registry in this process: what `udm run` and the library make their devices by.

use super::{DmTransport, IoctlError};
use std::path::PathBuf;
use udm_base::Errno;

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
        let answer = handle(&self.registry, &caller, cmd, buf).answer;
        if !answer.buf.is_empty() {
            *buf = answer.buf;
        }
        match answer.errno {
            0 => {
                self.said = answer.detail;
                Ok(())
            }
            errno => Err(IoctlError::new(Errno::new(errno), answer.detail)),
        }
    }

    fn said(&mut self) -> String {
        std::mem::take(&mut self.said)
    }
}
