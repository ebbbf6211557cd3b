//! Mapped devices as exports.

use rustix::process::geteuid;
use std::any::Any;
use std::sync::Arc;
use udm_core::{MappedDevice, Registry, TableSlot};
use udm_export::{Client, Export, Exports, OpenError, Refused};
use udm_io::BlockDevice;

/// Every active device by its name, or one of them only.
pub(crate) struct MappedExports {
    registry: Registry,
    only: Option<String>,
}

impl MappedExports {
    /// Every active device.
    pub(crate) fn all(registry: &Registry) -> Self {
        Self { registry: registry.clone(), only: None }
    }

    /// The device of that name.
    pub(crate) fn only(registry: &Registry, name: &str) -> Self {
        Self { registry: registry.clone(), only: Some(name.to_owned()) }
    }

    fn visible(&self) -> Vec<Arc<MappedDevice>> {
        let mut devices = self.registry.list();
        devices.retain(|md| md.info().active && self.only.as_ref().is_none_or(|only| *only == md.device_name()));
        devices
    }

    /// What the empty name stands for: the one device that there is.
    fn default_device(&self) -> Result<Arc<MappedDevice>, OpenError> {
        let devices = self.visible();
        match devices.as_slice() {
            [one] => Ok(one.clone()),
            [] => Err(OpenError::Refused("no device is active".into())),
            many => {
                let names: Vec<_> = many.iter().map(|md| md.device_name()).collect();
                Err(OpenError::Refused(format!("there is no default export; name one of {}", names.join(", "))))
            }
        }
    }
}

impl Exports for MappedExports {
    fn list(&self) -> Vec<Arc<dyn Export>> {
        self.visible().into_iter().map(|md| Arc::new(Mapped(md)) as Arc<dyn Export>).collect()
    }

    fn find(&self, name: &str, client: &Client) -> Result<Arc<dyn Export>, OpenError> {
        if let Client::Unix { uid, .. } = client
            && !may_connect(*uid)
        {
            return Err(OpenError::Refused(refusal(*uid)));
        }
        let md = match name {
            "" => self.default_device()?,
            _ => {
                let found = self.registry.by_name(name);
                let found = found.filter(|_| self.only.as_ref().is_none_or(|only| only == name));
                found.ok_or_else(|| OpenError::Unknown(name.to_owned()))?
            }
        };
        if !md.info().active {
            return Err(OpenError::Refused(format!("{name} has no active table; load one and resume it")));
        }
        Ok(Arc::new(Mapped(md)))
    }
}

/// A mapped device as an export, whichever way.
pub(crate) struct Mapped(pub(crate) Arc<MappedDevice>);

impl Export for Mapped {
    fn name(&self) -> String {
        self.0.device_name()
    }

    fn description(&self) -> String {
        format!("mapped device {}", self.0.devt())
    }

    fn device(&self) -> Arc<dyn BlockDevice> {
        self.0.clone()
    }

    fn read_only(&self) -> bool {
        is_read_only(&self.0)
    }

    fn write_through(&self) -> bool {
        keeps_in_memory(&self.0)
    }

    fn open(&self) -> Result<Box<dyn Any + Send>, Refused> {
        let open = self.0.open().map_err(|e| Refused { errno: e.errno, message: e.message })?;
        Ok(Box::new(open))
    }
}

/// Whether no write could succeed, so that a client is better told at once.
pub(crate) fn is_read_only(md: &MappedDevice) -> bool {
    let beneath = md.table(TableSlot::Active);
    let beneath = beneath.as_ref().map_or(&[][..], |table| table.devices());
    md.read_only() || !beneath.is_empty() && beneath.iter().all(|dev| dev.read_only())
}

/// Whether what a write changed beside its data is in this process's memory until a flush: a pool's mappings are. The
/// kernel and what is mounted survive this process, and would not find again what they have written.
pub(crate) fn keeps_in_memory(md: &MappedDevice) -> bool {
    let Some(table) = md.table(TableSlot::Active) else { return false };
    table.types().any(|target| target.name == "thin")
        || table.devices().iter().any(|dev| dev.as_any().downcast_ref::<MappedDevice>().is_some_and(keeps_in_memory))
}

/// Whether a process of that user may use this one's sockets: its own user's and root's may.
pub(crate) fn may_connect(uid: u32) -> bool {
    uid == 0 || uid == geteuid().as_raw()
}

/// What one that may not is told.
pub(crate) fn refusal(uid: u32) -> String {
    let owner = geteuid().as_raw();
    format!("this udm belongs to user {owner}: user {uid} may not use it; only {owner} and root may")
}
