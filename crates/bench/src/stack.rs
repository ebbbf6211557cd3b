//! The devices of a concise specification, for as long as a measurement lasts.

use crate::concise::parse_concise;
use crate::{Error, Subject, host};
use std::path::Path;
use std::sync::Arc;
use udm_core::{MappedDevice, Registry, SuspendOptions};
use udm_io::Domain;

/// A change to how a device serves its bios (`udm set`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Setting {
    /// Always clone, never remap.
    CloneAlways(bool),
    /// Lead plans through this device and down from it in one step.
    Compile(bool),
}

/// Mapped devices of their own registry.
pub struct Stack {
    registry: Registry,
}

impl Stack {
    /// Makes every device of `concise` and makes it live. May block: it opens devices.
    pub fn new(domain: &Domain, concise: &str) -> Result<Self, Error> {
        let devices = parse_concise(concise).map_err(|e| Error::Stack(format!("--concise: {e}")))?;
        let registry = Registry::new(domain.clone(), udm_targets::TARGETS, host::opener(domain));
        for device in devices {
            let failed = |e: udm_core::Error| Error::Stack(format!("--concise: {}: {}", device.name, e.message));
            let md = registry.create(&device.name, &device.uuid, device.minor).map_err(failed)?;
            md.load(&device.lines, device.read_only, Path::new(".")).map_err(failed)?;
            md.resume(SuspendOptions::default(), &|| false).map_err(failed)?;
        }
        Ok(Self { registry })
    }

    /// Whether it has a device of that name.
    pub fn has(&self, name: &str) -> bool {
        self.registry.by_name(name).is_some()
    }

    /// The device of that name.
    pub fn device(&self, name: &str) -> Result<Arc<MappedDevice>, Error> {
        self.registry.by_name(name).ok_or_else(|| {
            let names: Vec<_> = self.registry.list().iter().map(|md| md.device_name()).collect();
            Error::Stack(format!("no device {name:?} in --concise; it has {}", names.join(", ")))
        })
    }

    /// The device of that name, to be measured.
    pub fn subject(&self, name: &str) -> Result<Subject, Error> {
        let md = self.device(name)?;
        Ok(Subject::device(name, md))
    }

    /// Changes how a device serves its bios.
    pub fn set(&self, name: &str, setting: Setting) -> Result<(), Error> {
        let md = self.device(name)?;
        match setting {
            Setting::CloneAlways(on) => md.set_clone_always(on),
            Setting::Compile(on) => md.set_compile(on),
        }
        Ok(())
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
