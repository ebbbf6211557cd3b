//! The registry: every mapped device by name, uuid and number.

use crate::activity::Activity;
use crate::events::Events;
use crate::opener::{Alone, HostNumbers, HostRequest, LoadedAlone, OpenHostDevices};
use crate::{Cancel, DeviceOpener, Error, HostOpener, MappedDevice, TargetType};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use udm_base::{DevT, Errno};
use udm_io::{BlockDevice, DeviceId, Domain};

/// udm's major number. The kernel gives block devices majors below 512 (`BLKDEV_MAJOR_MAX`, `block/genhd.c`, 6.12), so
/// that no device of the host has it, and `M:m` means one device wherever it is typed. It has three digits as the
/// kernel's usual 253, for which dmsetup's columns are made.
pub const MAJOR: u32 = 600;

/// The major of the numbers that stand for what is beneath and has none: files, remote exports, `null:` devices. Lists
/// of dependencies have room for numbers only. A table names such a device by its path or URI, never by this number.
pub const HOST_MAJOR: u32 = 601;

/// The longest name in bytes (`DM_NAME_LEN` less its zero).
pub const NAME_MAX: usize = 127;
/// The longest uuid in bytes (`DM_UUID_LEN` less its zero).
pub const UUID_MAX: usize = 128;
/// The highest minor number, as the kernel's 20 bits.
const MINOR_MAX: u32 = (1 << 20) - 1;

/// What a removal came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Removal {
    /// The device is gone.
    Done,
    /// It is open, and goes at its last close.
    Deferred,
}

#[derive(Default)]
struct Devices {
    by_name: BTreeMap<String, Arc<MappedDevice>>,
    by_uuid: BTreeMap<String, Arc<MappedDevice>>,
    by_minor: BTreeMap<u32, Arc<MappedDevice>>,
    /// Every number below is in use.
    used_below: u32,
    /// Those that are being removed, until their bios are done.
    going: Vec<Weak<MappedDevice>>,
}

pub(crate) struct RegistryCore {
    pub(crate) domain: Domain,
    pub(crate) types: &'static [&'static TargetType],
    host: Box<HostOpener>,
    open_host: OpenHostDevices,
    numbers: HostNumbers,
    devices: Mutex<Devices>,
    /// Held while plans are made and published: never over a wait for bios.
    pub(crate) plans: Mutex<()>,
    /// Held while a table that has been made is put in its place: never over I/O.
    pub(crate) loads: Mutex<()>,
    alone: Arc<LoadedAlone>,
    pub(crate) events: Events,
    /// Where nodes of these devices are.
    nodes: OnceLock<PathBuf>,
}

/// The mapped devices of one udm. Clones are the same registry.
#[derive(Clone)]
pub struct Registry(Arc<RegistryCore>);

impl Registry {
    /// An empty registry with the targets that tables may name, and `host` to open what is not a mapped device.
    pub fn new(domain: Domain, types: &'static [&'static TargetType], host: Box<HostOpener>) -> Self {
        Self(Arc::new(RegistryCore {
            domain,
            types,
            host,
            open_host: OpenHostDevices::default(),
            numbers: HostNumbers::default(),
            devices: Mutex::default(),
            plans: Mutex::default(),
            loads: Mutex::default(),
            alone: Arc::default(),
            events: Events::default(),
            nodes: OnceLock::new(),
        }))
    }

    pub(crate) fn core(&self) -> &RegistryCore {
        &self.0
    }

    /// Tells where the host's file system shows these devices: a link in /dev/mapper that leads there is no device of
    /// the host's own. Only the first call counts.
    pub fn set_nodes(&self, dir: PathBuf) {
        let _ = self.0.nodes.set(dir);
    }

    /// The domain whose channels use the devices.
    pub fn domain(&self) -> &Domain {
        &self.0.domain
    }

    /// The targets that tables may name.
    pub fn types(&self) -> &'static [&'static TargetType] {
        self.0.types
    }

    /// Makes a device without a table. `minor`: a number that has to be free, or the lowest free one.
    pub fn create(&self, name: &str, uuid: &str, minor: Option<u32>) -> Result<Arc<MappedDevice>, Error> {
        check_name(name)?;
        check_uuid(uuid)?;
        let mut devices = self.0.lock();
        devices.check_free(name, uuid)?;
        let minor = devices.free_minor(minor)?;
        let (registry, clock) = (Arc::downgrade(&self.0), self.0.domain.clock().clone());
        let md = MappedDevice::new(registry, clock, DevT::new(MAJOR, minor), name.to_owned(), uuid.to_owned());
        devices.by_name.insert(name.to_owned(), md.clone());
        if !uuid.is_empty() {
            devices.by_uuid.insert(uuid.to_owned(), md.clone());
        }
        devices.by_minor.insert(minor, md.clone());
        Ok(md)
    }

    /// The device of that name.
    pub fn by_name(&self, name: &str) -> Option<Arc<MappedDevice>> {
        self.0.lock().by_name.get(name).cloned()
    }

    /// The device of that uuid.
    pub fn by_uuid(&self, uuid: &str) -> Option<Arc<MappedDevice>> {
        self.0.lock().by_uuid.get(uuid).cloned()
    }

    /// The device of that number.
    pub fn by_devt(&self, devt: DevT) -> Option<Arc<MappedDevice>> {
        if devt.major != MAJOR {
            return None;
        }
        self.0.lock().by_minor.get(&devt.minor).cloned()
    }

    /// Every device, in the order of their names.
    pub fn list(&self) -> Vec<Arc<MappedDevice>> {
        self.0.lock().by_name.values().cloned().collect()
    }

    /// Gives a device another name.
    pub fn rename(&self, md: &Arc<MappedDevice>, name: &str) -> Result<(), Error> {
        check_name(name)?;
        let mut devices = self.0.lock();
        devices.check_there(md)?;
        devices.check_free(name, "")?;
        devices.by_name.remove(&md.device_name());
        devices.by_name.insert(name.to_owned(), md.clone());
        md.set_names(Some(name.to_owned()), None);
        Ok(())
    }

    /// Gives a uuid to a device that has none.
    pub fn set_uuid(&self, md: &Arc<MappedDevice>, uuid: &str) -> Result<(), Error> {
        check_uuid(uuid)?;
        let mut devices = self.0.lock();
        devices.check_there(md)?;
        let old = md.uuid();
        if uuid.is_empty() || !old.is_empty() {
            let message = format!("{} has the uuid {old:?}; a uuid is set once", md.device_name());
            return Err(Error::new(Errno::EINVAL, message));
        }
        devices.check_free("", uuid)?;
        devices.by_uuid.insert(uuid.to_owned(), md.clone());
        md.set_names(None, Some(uuid.to_owned()));
        Ok(())
    }

    /// Removes a device that is not open; with `deferred` an open one goes at its last close. Blocks until its bios
    /// are done.
    pub fn remove(&self, md: &Arc<MappedDevice>, deferred: bool) -> Result<Removal, Error> {
        self.0.remove(md, deferred)
    }

    /// Opens a device for a table or an export: one of udm's own by `M:m` or `/dev/mapper/NAME`, else the host's.
    pub fn open(
        &self,
        spec: &str,
        cwd: &Path,
        read_only: bool,
        exclusive: bool,
    ) -> Result<Arc<dyn BlockDevice>, Error> {
        LoadContext { registry: &self.0, cwd, cancel: &|| false, doing: None, secret: false }
            .open(spec, read_only, exclusive)
    }

    /// The number that stands for a device beneath in a list of dependencies: its own, or one of [`HOST_MAJOR`] that it
    /// keeps while it is open.
    pub fn number_of(&self, dev: &Arc<dyn BlockDevice>) -> DevT {
        self.0.numbers.number_of(dev)
    }

    /// What is behind the numbers of [`HOST_MAJOR`] that have been given to devices which are open: the names that
    /// tables have for them.
    pub fn host_devices(&self) -> Vec<(DevT, String)> {
        self.0.numbers.list()
    }

    /// Counts an event of the registry itself, as the making or removing of a device.
    pub fn raise_event(&self) {
        self.0.events.raise();
    }

    /// Goes on counting events of all devices where another process left off.
    pub fn carry_events(&self, events: u32) {
        self.0.events.carry(events);
    }

    /// Counts of events of all devices together.
    pub fn event_nr(&self) -> u32 {
        self.0.events.number()
    }

    /// Blocks until an event has happened since the count was `seen`.
    pub fn wait_event(&self, seen: u32, cancel: Cancel<'_>) -> bool {
        self.0.events.wait(seen, cancel)
    }
}

impl RegistryCore {
    fn lock(&self) -> MutexGuard<'_, Devices> {
        self.devices.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Every device, those last that are being removed, unless the lock cannot be had.
    pub(crate) fn devices_now(&self) -> Option<Vec<Arc<MappedDevice>>> {
        let devices = crate::inspect::patiently(&self.devices)?;
        let going = devices.going.iter().filter_map(Weak::upgrade);
        Some(devices.by_name.values().cloned().chain(going).collect())
    }

    fn is_own_node(&self, path: &Path) -> bool {
        self.nodes.get().is_some_and(|dir| std::fs::read_link(path).is_ok_and(|to| to.starts_with(dir)))
    }

    pub(crate) fn remove(&self, md: &Arc<MappedDevice>, deferred: bool) -> Result<Removal, Error> {
        if !md.lock_for_removal(deferred)? {
            return Ok(Removal::Deferred);
        }
        self.forget(md);
        Ok(Removal::Done)
    }

    /// Ends a device that is marked for removal. Blocks until its bios are done.
    pub(crate) fn forget(&self, md: &Arc<MappedDevice>) {
        {
            let mut devices = self.lock();
            // Names only change under this lock.
            let (name, uuid, minor) = (md.device_name(), md.uuid(), md.devt().minor);
            devices.by_name.remove(&name);
            devices.by_uuid.remove(&uuid);
            devices.by_minor.remove(&minor);
            devices.used_below = devices.used_below.min(minor);
            devices.going.push(Arc::downgrade(md));
        }
        md.destroy(self);
        self.lock().going.retain(|going| !std::ptr::eq(going.as_ptr(), Arc::as_ptr(md)));
    }
}

impl Devices {
    /// Handles outlive their device's removal; a name must not bring it back.
    fn check_there(&self, md: &Arc<MappedDevice>) -> Result<(), Error> {
        if self.by_minor.get(&md.devt().minor).is_some_and(|d| Arc::ptr_eq(d, md)) {
            return Ok(());
        }
        Err(Error::new(Errno::ENXIO, format!("{} has been removed", md.device_name())))
    }

    fn check_free(&self, name: &str, uuid: &str) -> Result<(), Error> {
        if self.by_name.contains_key(name) {
            return Err(Error::new(Errno::EBUSY, format!("a device named {name:?} exists already")));
        }
        if let Some(other) = self.by_uuid.get(uuid).filter(|_| !uuid.is_empty()) {
            let message = format!("the uuid {uuid:?} belongs to {:?} already", other.device_name());
            return Err(Error::new(Errno::EBUSY, message));
        }
        Ok(())
    }

    fn free_minor(&mut self, wanted: Option<u32>) -> Result<u32, Error> {
        if let Some(minor) = wanted {
            if minor > MINOR_MAX {
                return Err(Error::new(Errno::EINVAL, format!("minor {minor}: expected at most {MINOR_MAX}")));
            }
            return match self.by_minor.get(&minor) {
                Some(md) => Err(Error::new(Errno::EBUSY, format!("minor {minor} belongs to {:?}", md.device_name()))),
                None => Ok(minor),
            };
        }
        let used =
            self.by_minor.range(self.used_below..).zip(self.used_below..).take_while(|((used, _), i)| *used == i);
        self.used_below += used.count() as u32;
        match self.used_below {
            minor if minor > MINOR_MAX => Err(Error::new(Errno::EBUSY, "every minor number is in use")),
            minor => Ok(minor),
        }
    }
}

/// `check_name` (`drivers/md/dm-ioctl.c`, 6.12).
fn check_name(name: &str) -> Result<(), Error> {
    let why = match name {
        "" => "it is empty",
        "." | ".." | "control" => "it is reserved",
        _ if name.contains('/') => "it has a '/'",
        _ if name.len() > NAME_MAX => "it is longer than 127 bytes",
        _ if name.contains('\0') => "it has a zero byte",
        _ => return Ok(()),
    };
    Err(Error::new(Errno::EINVAL, format!("{name:?} cannot be a device's name: {why}")))
}

fn check_uuid(uuid: &str) -> Result<(), Error> {
    if uuid.len() > UUID_MAX {
        return Err(Error::new(
            Errno::EINVAL,
            format!("{uuid:?} cannot be a uuid: it is longer than {UUID_MAX} bytes"),
        ));
    }
    Ok(())
}

/// Opens devices for one load.
pub(crate) struct LoadContext<'a> {
    pub(crate) registry: &'a RegistryCore,
    pub(crate) cwd: &'a Path,
    /// Whether nobody wants the table any more.
    pub(crate) cancel: Cancel<'a>,
    /// The load, to be told what it is at.
    pub(crate) doing: Option<&'a Activity<'a>>,
    /// What the table says is told to nobody.
    pub(crate) secret: bool,
}

impl DeviceOpener for LoadContext<'_> {
    fn open(&self, spec: &str, read_only: bool, exclusive: bool) -> Result<Arc<dyn BlockDevice>, Error> {
        if let Some(md) = self.own(spec)? {
            return Ok(md);
        }
        let dev = self.open_host(spec, read_only, exclusive)?;
        self.registry.open_host.share(dev, exclusive)
    }

    fn open_exclusive(
        &self,
        spec: &str,
        read_only: bool,
        known: Option<&Arc<dyn BlockDevice>>,
    ) -> Result<Arc<dyn BlockDevice>, Error> {
        if let Some(known) = known {
            if known.name() == spec {
                return Ok(known.clone());
            }
            if let Some(md) = self.own(spec)? {
                return Ok(if md.id() == known.id() { known.clone() } else { md });
            }
            // Not exclusively: that would be refused because of `known`. It is dropped, whichever device it is.
            if self.open_host(spec, read_only, false)?.id() == known.id() {
                return Ok(known.clone());
            }
        }
        self.open(spec, read_only, true)
    }

    fn alone_with(&self, id: DeviceId) -> Option<Alone> {
        self.registry.alone.take(id)
    }
}

impl LoadContext<'_> {
    fn open_host(&self, spec: &str, read_only: bool, exclusive: bool) -> Result<Arc<dyn BlockDevice>, Error> {
        if let Some(doing) = self.doing {
            match self.secret {
                true => doing.now("opens a device beneath"),
                false => doing.now(&format!("opens {spec}")),
            }
        }
        let request = HostRequest { spec, cwd: self.cwd, read_only, exclusive, cancel: self.cancel };
        let opened = (self.registry.host)(&request);
        if let Some(doing) = self.doing {
            doing.now("makes its targets");
        }
        opened
    }

    fn own(&self, spec: &str) -> Result<Option<Arc<MappedDevice>>, Error> {
        let devices = self.registry.lock();
        if let Ok(devt) = spec.parse::<DevT>() {
            if devt.major != MAJOR {
                return Ok(None);
            }
            let found = devices.by_minor.get(&devt.minor).cloned();
            let missing = || Error::new(Errno::ENXIO, format!("no mapped device has the number {devt}"));
            return found.map(Some).ok_or_else(missing);
        }
        let Some(name) = spec.strip_prefix("/dev/mapper/") else { return Ok(None) };
        let own = devices.by_name.get(name).cloned();
        drop(devices);
        if own.is_some() && Path::new(spec).exists() && !self.registry.is_own_node(Path::new(spec)) {
            let message =
                format!("{spec} is a device of udm's and one of the host's; name the one you mean by its M:m");
            return Err(Error::new(Errno::EEXIST, message));
        }
        Ok(own)
    }
}
