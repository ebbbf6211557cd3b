//! Mapped devices as NBD exports.

use rustix::process::geteuid;
use std::sync::Arc;
use udm_core::{MappedDevice, OpenDevice, Registry, TableSlot};
use udm_export::nbd::{Client, Export, ExportInfo, Exports, OpenError};
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
    fn list(&self) -> Vec<ExportInfo> {
        self.visible().iter().map(|md| info(md)).collect()
    }

    fn open(&self, name: &str, client: &Client) -> Result<Box<dyn Export>, OpenError> {
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
        let open = md.open().map_err(|e| OpenError::Refused(e.message))?;
        Ok(Box::new(MappedExport(open)))
    }
}

struct MappedExport(OpenDevice);

impl Export for MappedExport {
    fn info(&self) -> ExportInfo {
        info(self.0.device())
    }

    fn device(&self) -> Arc<dyn BlockDevice> {
        self.0.device().clone()
    }

    fn read_only(&self) -> bool {
        is_read_only(self.0.device())
    }
}

/// Whether no write could succeed, so that a client is better told at once.
pub(crate) fn is_read_only(md: &MappedDevice) -> bool {
    let beneath = md.table(TableSlot::Active);
    let beneath = beneath.as_ref().map_or(&[][..], |table| table.devices());
    md.read_only() || !beneath.is_empty() && beneath.iter().all(|dev| dev.read_only())
}

fn info(md: &MappedDevice) -> ExportInfo {
    ExportInfo { name: md.device_name(), description: format!("mapped device {}", md.devt()) }
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
