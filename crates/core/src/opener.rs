//! How a table's device names become devices.

use crate::{Error, HOST_MAJOR};
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use udm_base::{DevT, Errno};
use udm_io::{BlockDevice, DeviceId};

/// Opens the device that a table names. Mapped devices are looked up before the host's, see `Registry`.
pub trait DeviceOpener {
    /// Opens `spec`: a path, `M:m`, or a URI. May block.
    fn open(&self, spec: &str, read_only: bool, exclusive: bool) -> Result<Arc<dyn BlockDevice>, Error>;

    /// Opens `spec` exclusively, or gives `known`, which was opened so before, if that is what `spec` names. May block.
    fn open_exclusive(
        &self,
        spec: &str,
        read_only: bool,
        known: Option<&Arc<dyn BlockDevice>>,
    ) -> Result<Arc<dyn BlockDevice>, Error>;

    /// Keeps other loads from beginning with what this one does with a device, until what is returned is dropped:
    /// tables are made at the same time, and each may take long. `None` when another load is at it. Does not block.
    fn alone_with(&self, id: DeviceId) -> Option<Alone>;
}

/// Devices that one load each has to itself.
#[derive(Default)]
pub(crate) struct LoadedAlone(Mutex<Vec<DeviceId>>);

/// A device that a load has to itself, as long as this lives.
pub struct Alone {
    all: Arc<LoadedAlone>,
    id: DeviceId,
}

impl LoadedAlone {
    pub(crate) fn take(self: &Arc<Self>, id: DeviceId) -> Option<Alone> {
        let mut taken = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if taken.contains(&id) {
            return None;
        }
        taken.push(id);
        Some(Alone { all: self.clone(), id })
    }
}

impl Drop for Alone {
    fn drop(&mut self) {
        self.all.0.lock().unwrap_or_else(PoisonError::into_inner).retain(|id| *id != self.id);
    }
}

/// Opens devices that are not udm's own: what the program gives to the registry.
pub type HostOpener = dyn Fn(&HostRequest<'_>) -> Result<Arc<dyn BlockDevice>, Error> + Send + Sync;

/// What a [`HostOpener`] is asked.
pub struct HostRequest<'a> {
    /// A path or a URI.
    pub spec: &'a str,
    /// Where relative paths begin: the caller's directory.
    pub cwd: &'a std::path::Path,
    /// Open for reading only.
    pub read_only: bool,
    /// Refuse when someone else has it.
    pub exclusive: bool,
    /// Whether nobody wants the device any more: asked now and then by what takes long.
    pub cancel: crate::Cancel<'a>,
}

/// The host's devices that are open, so that two names of one device give one device.
#[derive(Default)]
pub(crate) struct OpenHostDevices(Mutex<HashMap<(DeviceId, bool), OpenHost>>);

struct OpenHost {
    dev: Weak<dyn BlockDevice>,
    exclusive: bool,
}

impl OpenHostDevices {
    /// The device of the same identity that is open already, or `dev` itself. An exclusive one is not shared.
    pub(crate) fn share(&self, dev: Arc<dyn BlockDevice>, exclusive: bool) -> Result<Arc<dyn BlockDevice>, Error> {
        let id = dev.id();
        if matches!(id, DeviceId::Anonymous(_)) {
            return Ok(dev);
        }
        let mut open = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(|_, host| host.dev.strong_count() > 0);
        let others = open.iter().filter(|((other, _), _)| *other == id);
        if let Some((_, other)) = others.clone().find(|(_, host)| exclusive || host.exclusive) {
            let whose = if other.exclusive { "metadata, COW or pool data of another table" } else { "another table" };
            return Err(Error::new(Errno::EBUSY, format!("{} is in use by {whose} of this udm", dev.name())));
        }
        let key = (id, dev.read_only());
        if let Some(known) = open.get(&key).and_then(|host| host.dev.upgrade()) {
            return Ok(known);
        }
        open.insert(key, OpenHost { dev: Arc::downgrade(&dev), exclusive });
        Ok(dev)
    }
}

/// Numbers for the host's devices that have none of their own. A file keeps its number for as long as the registry
/// lives, so that what a list of dependencies said stays true; other devices for as long as they are open.
#[derive(Default)]
pub(crate) struct HostNumbers(Mutex<BTreeMap<u32, Numbered>>);

struct Numbered {
    id: DeviceId,
    dev: Weak<dyn BlockDevice>,
}

/// So many files are remembered; then those that are closed are forgotten.
const NUMBERS_MAX: usize = 1 << 16;

impl HostNumbers {
    pub(crate) fn number_of(&self, dev: &Arc<dyn BlockDevice>) -> DevT {
        let id = dev.id();
        if let DeviceId::Number(number) = id {
            return number;
        }
        let mut given = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let full = given.len() >= NUMBERS_MAX;
        given.retain(|_, n| n.dev.strong_count() > 0 || (!full && matches!(n.id, DeviceId::File(..))));
        let known = given.iter().find(|(_, numbered)| numbered.id == id).map(|(minor, _)| *minor);
        let minor = known.unwrap_or_else(|| (0..).find(|minor| !given.contains_key(minor)).unwrap_or_default());
        given.insert(minor, Numbered { id, dev: Arc::downgrade(dev) });
        DevT::new(HOST_MAJOR, minor)
    }

    /// The devices that are open and have been given a number, by their names in tables.
    pub(crate) fn list(&self) -> Vec<(DevT, String)> {
        let given = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let open = given.iter().filter_map(|(minor, n)| Some((DevT::new(HOST_MAJOR, *minor), n.dev.upgrade()?)));
        open.map(|(number, dev)| (number, dev.name())).collect()
    }
}
