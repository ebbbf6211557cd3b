//! How a table's device names become devices.

use crate::Error;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use udm_base::{DevT, Errno};
use udm_io::{BlockDevice, DeviceId};

/// The major of the numbers that stand for what is beneath and has none: files, remote exports, `null:` devices. Lists
/// of dependencies have room for numbers only. A table names such a device by its path or URI, never by this number.
pub const HOST_MAJOR: u32 = 601;

/// Opens the device that a table names. Mapped devices are looked up before the host's, see `Registry`.
pub trait DeviceOpener {
    /// Opens `spec`: a path, `M:m`, or a URI. May block.
    fn open(&self, spec: &str, read_only: bool, exclusive: bool) -> Result<Arc<dyn BlockDevice>, Error>;

    /// Opens `spec` exclusively. If `spec` names `known`, which was opened exclusively before, returns `known`. May
    /// block.
    fn open_exclusive(
        &self,
        spec: &str,
        read_only: bool,
        known: Option<&Arc<dyn BlockDevice>>,
    ) -> Result<Arc<dyn BlockDevice>, Error>;

    /// Reserves a device for this load until the returned value is dropped, since several tables may be made at the
    /// same time and each may take long. `None` when another load has it reserved. Does not block.
    fn alone_with(&self, id: DeviceId) -> Option<Alone>;
}

/// The devices that are reserved, each for one load.
#[derive(Default)]
pub(crate) struct LoadedAlone(Mutex<Vec<DeviceId>>);

/// The reservation of a device for a load, as long as this lives.
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

/// Opens devices that are not udm's own. The program gives one to the registry.
pub type HostOpener = dyn Fn(&HostRequest<'_>) -> Result<Arc<dyn BlockDevice>, Error> + Send + Sync;

/// A request to a [`HostOpener`].
pub struct HostRequest<'a> {
    /// A path or a URI.
    pub spec: &'a str,
    /// Where relative paths begin: the caller's directory.
    pub cwd: &'a std::path::Path,
    /// Open for reading only.
    pub read_only: bool,
    /// Refuse when someone else has it.
    pub exclusive: bool,
    /// Whether nobody wants the device any more: long operations ask this now and then.
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
/// lives, so that a printed list of dependencies stays true; other devices keep it for as long as they are open.
#[derive(Default)]
pub(crate) struct HostNumbers(Mutex<BTreeMap<u32, Numbered>>);

struct Numbered {
    id: DeviceId,
    dev: Weak<dyn BlockDevice>,
}

/// This many files are remembered; beyond that, closed ones are forgotten.
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
