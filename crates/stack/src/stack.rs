//! The devices of a concise specification, for as long as somebody needs them.

use crate::{parse_concise, registry};
use std::path::Path;
use std::sync::Arc;
use udm_base::Errno;
use udm_core::{MappedDevice, Registry, SuspendOptions};
use udm_io::Domain;

/// Why the devices of a specification could not be made, or one is not among them.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{message}")]
pub struct StackError {
    /// The kernel's number for it.
    pub errno: Errno,
    /// Which device, and what is wrong with it.
    pub message: String,
}

/// Mapped devices of their own registry. They end with it.
pub struct Stack {
    registry: Registry,
    /// The last device of the specification.
    top: String,
}

impl Stack {
    /// Makes every device of `concise` and makes it live. May block: it opens devices.
    pub fn new(domain: &Domain, concise: &str) -> Result<Self, StackError> {
        Self::over(registry(domain.clone()), concise)
    }

    /// Without devices; its registry takes them.
    pub fn empty(domain: &Domain) -> Self {
        Self { registry: registry(domain.clone()), top: String::new() }
    }

    /// As [`new`](Self::new) in a registry that has no devices yet.
    pub fn over(registry: Registry, concise: &str) -> Result<Self, StackError> {
        let devices = parse_concise(concise).map_err(|message| StackError { errno: Errno::EINVAL, message })?;
        // Made first, so that the devices that came up are taken down in order if one does not.
        let mut stack = Self { registry, top: String::new() };
        for device in devices {
            let failed =
                |e: udm_core::Error| StackError { errno: e.errno, message: format!("{}: {}", device.name, e.message) };
            let md = stack.registry.create(&device.name, &device.uuid, device.minor).map_err(failed)?;
            md.load(&device.lines, device.read_only, Path::new(".")).map_err(failed)?;
            md.resume(SuspendOptions::default(), &|| false).map_err(failed)?;
            stack.top = device.name;
        }
        Ok(stack)
    }

    /// Whether it has a device of that name.
    pub fn has(&self, name: &str) -> bool {
        self.registry.by_name(name).is_some()
    }

    /// The device of that name.
    pub fn device(&self, name: &str) -> Result<Arc<MappedDevice>, StackError> {
        self.registry.by_name(name).ok_or_else(|| {
            let names: Vec<_> = self.registry.list().iter().map(|md| md.device_name()).collect();
            let message = format!("no device {name:?} in the specification; it has {}", names.join(", "));
            StackError { errno: Errno::ENXIO, message }
        })
    }

    /// The name of the last device of the specification, which usually stands on the others.
    pub fn top(&self) -> &str {
        &self.top
    }

    /// The registry that the devices are in.
    pub fn registry(&self) -> &Registry {
        &self.registry
    }
}

impl Drop for Stack {
    /// Devices go from the top, since those beneath are held open.
    fn drop(&mut self) {
        let mut left = self.registry.list();
        loop {
            let before = left.len();
            left.retain(|md| self.registry.remove(md, false).is_err());
            if left.is_empty() || left.len() == before {
                break;
            }
        }
    }
}
