//! A device mapper in memory that answers ioctls as kernel 6.12 does, with targets that exist as
//! text only: enough to tell whether the client asks and shows as dmsetup does.

use super::golden::World;
use std::collections::BTreeMap;
use udm_base::{DevT, Errno};
use udm_client::dmsetup::{DmTransport, IoctlError};
use udm_control::codec::{Command, DeviceKey, DmIoctl, Flags, NameEntry, Reply, Request, TargetSpec, TargetVersion};

pub(crate) const MAJOR: u32 = 253;
/// Sectors of a backing device.
const BACKING_SECTORS: u64 = 262_144;
const TARGETS: [(&str, [u32; 3]); 4] =
    [("zero", [1, 2, 0]), ("striped", [1, 6, 0]), ("linear", [1, 4, 0]), ("error", [1, 7, 0])];

#[derive(Clone, Debug)]
struct Line {
    start: u64,
    len: u64,
    target: String,
    table: String,
    status: String,
    /// As the integrity subsystem measures it.
    measure: String,
    /// The devices beneath, in the order in which they were opened.
    deps: Vec<DevT>,
    /// Sectors read ahead.
    read_ahead: u64,
}

#[derive(Clone, Debug)]
struct Table {
    lines: Vec<Line>,
    read_only: bool,
}

impl Table {
    fn deps(&self) -> Vec<DevT> {
        let mut deps: Vec<DevT> = Vec::new();
        for dep in self.lines.iter().flat_map(|l| &l.deps) {
            if !deps.contains(dep) {
                deps.push(*dep);
            }
        }
        // The kernel puts what it opens at the front.
        deps.reverse();
        deps
    }

    fn len(&self) -> u64 {
        self.lines.iter().map(|l| l.len).sum()
    }
}

#[derive(Clone, Debug, Default)]
struct Device {
    uuid: Vec<u8>,
    minor: u32,
    active: Option<Table>,
    inactive: Option<Table>,
    suspended: bool,
    read_only: bool,
    deferred: bool,
    events: u32,
    held: i32,
    /// What it reads ahead, where that was set.
    read_ahead: Option<u64>,
    /// The names that it was held by: it may be renamed before it is released.
    held_as: Vec<String>,
}

/// The kernel: devices by name, which is the order it lists them in.
pub(crate) struct FakeKernel {
    devices: BTreeMap<Vec<u8>, Device>,
    backing: Vec<(String, DevT)>,
}

type Answer<T = ()> = Result<T, Errno>;

impl FakeKernel {
    /// A kernel without mapped devices, over devices of these paths and numbers.
    pub(crate) fn new(backing: Vec<(String, DevT)>) -> Self {
        Self { devices: BTreeMap::new(), backing }
    }

    fn find(&self, request: &Request<'_>) -> Answer<Vec<u8>> {
        let found = match request.device_key().ok_or(Errno::ENXIO)? {
            DeviceKey::Name(name) => self.devices.get_key_value(name),
            DeviceKey::Uuid(uuid) => self.devices.iter().find(|(_, d)| d.uuid == uuid),
            DeviceKey::Dev(dev) => self.devices.iter().find(|(_, d)| dev == DevT::new(MAJOR, d.minor)),
        };
        found.map(|(name, _)| name.clone()).ok_or(Errno::ENXIO)
    }

    fn device(&mut self, name: &[u8]) -> &mut Device {
        self.devices.get_mut(name).expect("the device was found before")
    }

    fn open_count(&self, name: &[u8]) -> i32 {
        let device = &self.devices[name];
        let dev = DevT::new(MAJOR, device.minor);
        let tables = self.devices.values().flat_map(|d| [&d.active, &d.inactive]).flatten();
        device.held + tables.filter(|t| t.deps().contains(&dev)).count() as i32
    }

    /// As `__dev_status` and the name and uuid that every lookup fills in.
    fn fill(&self, header: &mut DmIoctl, name: &[u8]) {
        let device = &self.devices[name];
        let inactive_asked = header.flags.contains(Flags::QUERY_INACTIVE_TABLE);
        let table = if inactive_asked { &device.inactive } else { &device.active };
        assert!(header.set_name(name) && header.set_uuid(&device.uuid));
        header.set_device(Some(DevT::new(MAJOR, device.minor)));
        header.open_count = self.open_count(name);
        header.event_nr = device.events;
        header.target_count = table.as_ref().map_or(0, |t| t.lines.len() as u32);
        let read_only = if inactive_asked {
            device.inactive.as_ref().is_some_and(|t| t.read_only)
        } else {
            device.active.is_some() && device.read_only
        };
        let flags = &mut header.flags;
        flags.set(Flags::SUSPEND, device.suspended);
        flags.set(Flags::READONLY, read_only);
        flags.set(Flags::ACTIVE_PRESENT, device.active.is_some());
        flags.set(Flags::INACTIVE_PRESENT, device.inactive.is_some());
        flags.set(Flags::DEFERRED_REMOVE, device.deferred);
    }

    fn answer(&mut self, request: &Request<'_>, reply: &mut Reply) -> Answer {
        let flags = request.flags();
        match request.command() {
            Command::Version => return Ok(()),
            Command::RemoveAll => return self.remove_all(flags.contains(Flags::DEFERRED_REMOVE)),
            Command::ListDevices => {
                reply.names(self.devices.iter().map(|(name, d)| NameEntry {
                    dev: DevT::new(MAJOR, d.minor),
                    name,
                    event_nr: d.events,
                    uuid: Some(&d.uuid[..]).filter(|u| !u.is_empty()),
                }));
                return Ok(());
            }
            Command::ListVersions => {
                reply.versions(TARGETS.iter().map(|(n, v)| TargetVersion { name: n.as_bytes(), version: *v }));
                return Ok(());
            }
            Command::GetTargetVersion => {
                let found = TARGETS.iter().find(|t| t.0.as_bytes() == request.name()).ok_or(Errno::EINVAL)?;
                reply.versions([TargetVersion { name: found.0.as_bytes(), version: found.1 }]);
                return Ok(());
            }
            Command::DevCreate => {
                let name = self.create(request)?;
                self.fill(reply.header_mut(), &name);
                return Ok(());
            }
            Command::DevRename => {
                let name = self.rename(request)?;
                self.fill(reply.header_mut(), &name);
                return Ok(());
            }
            _ => {}
        }
        let name = self.find(request)?;
        match request.command() {
            Command::DevRemove => {
                self.remove(&name, flags.contains(Flags::DEFERRED_REMOVE))?;
                return Ok(());
            }
            Command::DevSuspend if flags.contains(Flags::SUSPEND) => self.device(&name).suspended = true,
            Command::DevSuspend => {
                let device = self.device(&name);
                if let Some(table) = device.inactive.take() {
                    device.read_only = table.read_only;
                    device.active = Some(table);
                }
                if device.active.is_none() {
                    return Err(Errno::EINVAL);
                }
                device.suspended = false;
                self.collect();
            }
            Command::TableLoad => {
                let lines = request.targets().map_err(|e| e.errno)?;
                let table = self.table(&name, &lines, flags.contains(Flags::READONLY))?;
                self.device(&name).inactive = Some(table);
                self.collect();
            }
            Command::TableClear => {
                self.device(&name).inactive = None;
                self.collect();
            }
            Command::TargetMsg => {
                let (_, text) = request.message().map_err(|e| e.errno)?;
                let device = self.device(&name);
                match text {
                    b"@cancel_deferred_remove" => device.deferred = false,
                    _ if text.is_empty() || text[0] == b'@' || device.active.is_some() => return Err(Errno::EINVAL),
                    _ => {}
                }
            }
            Command::DevSetGeometry => {
                let g = request.geometry().map_err(|e| e.errno)?;
                let limit = u64::from(g.cylinders) * u64::from(g.heads) * u64::from(g.sectors);
                if g.start.get() > limit {
                    return Err(Errno::EINVAL);
                }
            }
            _ => {}
        }
        self.fill(reply.header_mut(), &name);
        let device = &self.devices[&name];
        let table = if flags.contains(Flags::QUERY_INACTIVE_TABLE) { &device.inactive } else { &device.active };
        let Some(table) = table else { return Ok(()) };
        match request.command() {
            Command::TableStatus | Command::DevWait => {
                let specs = table.lines.iter().map(|l| {
                    let text = match () {
                        () if flags.contains(Flags::IMA_MEASUREMENT) => &l.measure,
                        () if flags.contains(Flags::STATUS_TABLE) => &l.table,
                        () => &l.status,
                    };
                    let (start, len) = (udm_base::Sector::new(l.start), udm_base::Sectors::new(l.len));
                    TargetSpec::new(start, len, l.target.as_bytes(), text.as_bytes())
                });
                reply.targets(specs);
            }
            Command::TableDeps => reply.deps(&table.deps()),
            _ => {}
        }
        Ok(())
    }

    fn create(&mut self, request: &Request<'_>) -> Answer<Vec<u8>> {
        let name = request.name().to_vec();
        check_name(&name)?;
        let used = |minor| self.devices.values().any(|d| d.minor == minor);
        let minor = if request.flags().contains(Flags::PERSISTENT_DEV) {
            let wanted = DevT::from_huge(request.header().dev).minor;
            if used(wanted) {
                return Err(Errno::EBUSY);
            }
            wanted
        } else {
            (0..).find(|&m| !used(m)).ok_or(Errno::EBUSY)?
        };
        let uuid = request.uuid().to_vec();
        if self.devices.contains_key(&name) || !uuid.is_empty() && self.devices.values().any(|d| d.uuid == uuid) {
            return Err(Errno::EBUSY);
        }
        self.devices.insert(name.clone(), Device { uuid, minor, ..Device::default() });
        Ok(name)
    }

    fn rename(&mut self, request: &Request<'_>) -> Answer<Vec<u8>> {
        let new = request.new_name().map_err(|e| e.errno)?.to_vec();
        let to_uuid = request.flags().contains(Flags::UUID);
        if !to_uuid {
            check_name(&new)?;
        }
        let taken =
            if to_uuid { self.devices.values().any(|d| d.uuid == new) } else { self.devices.contains_key(&new) };
        if taken {
            return Err(Errno::EBUSY);
        }
        let name = request.name().to_vec();
        let mut device = self.devices.get(&name).cloned().ok_or(Errno::ENXIO)?;
        if to_uuid && !device.uuid.is_empty() {
            return Err(Errno::EINVAL);
        }
        device.events += u32::from(device.active.is_some());
        self.devices.remove(&name);
        let name = if to_uuid {
            device.uuid = new;
            name
        } else {
            new
        };
        self.devices.insert(name.clone(), device);
        Ok(name)
    }

    fn remove(&mut self, name: &[u8], deferred: bool) -> Answer {
        if self.open_count(name) > 0 {
            if !deferred {
                return Err(Errno::EBUSY);
            }
            self.device(name).deferred = true;
            return Ok(());
        }
        self.devices.remove(name);
        self.collect();
        Ok(())
    }

    fn remove_all(&mut self, deferred: bool) -> Answer {
        loop {
            let closed = self.devices.keys().find(|n| self.open_count(n) == 0).cloned();
            match closed {
                Some(name) => self.devices.remove(&name),
                None => break,
            };
        }
        if deferred {
            self.devices.values_mut().for_each(|d| d.deferred = true);
        }
        Ok(())
    }

    /// Remove what waits for its last close.
    fn collect(&mut self) {
        while let Some(name) =
            self.devices.iter().find(|(n, d)| d.deferred && self.open_count(n) == 0).map(|(n, _)| n.clone())
        {
            self.devices.remove(&name);
        }
    }

    fn table(&self, name: &[u8], specs: &[TargetSpec<'_>], read_only: bool) -> Answer<Table> {
        let mut lines: Vec<Line> = Vec::new();
        let mut end = 0;
        for spec in specs {
            let (start, len) = (spec.start.get(), spec.len.get());
            if len == 0 || start != end {
                return Err(Errno::EINVAL);
            }
            end = start.checked_add(len).filter(|e| *e < 1 << 55).ok_or(Errno::EINVAL)?;
            lines.push(self.line(name, start, len, spec)?);
        }
        Ok(Table { lines, read_only })
    }

    fn line(&self, name: &[u8], start: u64, len: u64, spec: &TargetSpec<'_>) -> Answer<Line> {
        let params = String::from_utf8_lossy(spec.params);
        let args: Vec<String> = unescape(&params);
        let target = String::from_utf8_lossy(spec.target_type).into_owned();
        let number = |i: usize| args.get(i).and_then(|a| sscanf(a)).ok_or(Errno::EINVAL);
        let mut line = Line {
            start,
            len,
            target,
            table: String::new(),
            status: String::new(),
            measure: String::new(),
            deps: vec![],
            read_ahead: 256,
        };
        match line.target.as_str() {
            "zero" if args.is_empty() => {}
            "error" if args.len() == 2 => line.deps.push(self.beneath(name, &args[0])?.0),
            "error" => {}
            "linear" if args.len() == 2 => {
                let (dev, sectors, read_ahead) = self.beneath(name, &args[0])?;
                let offset = number(1)?;
                if offset.checked_add(len).is_none_or(|e| e > sectors) {
                    return Err(Errno::EINVAL);
                }
                line.table = format!("{dev} {offset}");
                line.measure = format!("target_name=linear,target_version=1.4.0,device_name={dev},start={offset};");
                line.deps.push(dev);
                line.read_ahead = read_ahead;
            }
            "striped" if args.len() >= 2 => {
                let (stripes, chunk) = (number(0)?, number(1)?);
                if stripes == 0 || chunk == 0 || args.len() as u64 != 2 + 2 * stripes {
                    return Err(Errno::EINVAL);
                }
                if !len.is_multiple_of(stripes) || !(len / stripes).is_multiple_of(chunk) {
                    return Err(Errno::EINVAL);
                }
                line.table = format!("{stripes} {chunk}");
                line.status = format!("{stripes}");
                line.measure = format!("target_name=striped,target_version=1.6.0,stripes={stripes},chunk_size={chunk}");
                for (i, pair) in args[2..].chunks(2).enumerate() {
                    let (dev, sectors, _) = self.beneath(name, &pair[0])?;
                    let offset = sscanf(&pair[1]).ok_or(Errno::EINVAL)?;
                    if offset.checked_add(len / stripes).is_none_or(|e| e > sectors) {
                        return Err(Errno::EINVAL);
                    }
                    line.table += &format!(" {dev} {offset}");
                    line.status += &format!(" {dev}");
                    line.measure += &format!(
                        ",stripe_{i}_device_name={dev},stripe_{i}_physical_start={offset},stripe_{i}_status=A"
                    );
                    line.deps.push(dev);
                }
                line.measure.push(';');
                line.status += &format!(" 1 {}", "A".repeat(stripes as usize));
                line.read_ahead = (2 * stripes * chunk).max(256);
            }
            _ => return Err(Errno::EINVAL),
        }
        Ok(line)
    }

    /// A device that a table names: its number, its sectors, and what it reads ahead.
    fn beneath(&self, above: &[u8], word: &str) -> Answer<(DevT, u64, u64)> {
        let dev = match self.backing.iter().find(|b| b.0 == word) {
            Some((_, dev)) => *dev,
            None => match word.parse::<DevT>() {
                Ok(dev) => dev,
                Err(_) => {
                    let mapped = word.strip_prefix("/dev/mapper/").and_then(|n| self.devices.get(n.as_bytes()));
                    DevT::new(MAJOR, mapped.ok_or(Errno::ENODEV)?.minor)
                }
            },
        };
        if dev.major != MAJOR {
            let known = self.backing.iter().any(|b| b.1 == dev);
            return if known { Ok((dev, BACKING_SECTORS, 256)) } else { Err(Errno::ENXIO) };
        }
        let (name, device) = self.devices.iter().find(|(_, d)| d.minor == dev.minor).ok_or(Errno::ENXIO)?;
        if name == above {
            return Err(Errno::EINVAL);
        }
        let table = device.active.as_ref().ok_or(Errno::EINVAL)?;
        Ok((dev, table.len(), read_ahead(table)))
    }
}

/// As the kernel's `sscanf("%llu%c")`: digits alone, wrapped.
fn sscanf(text: &str) -> Option<u64> {
    let digits = text.bytes().map(|b| b.is_ascii_digit().then(|| u64::from(b - b'0')));
    let number = |n: Option<u64>, digit: Option<u64>| Some(n?.wrapping_mul(10).wrapping_add(digit?));
    digits.fold(Some(0), number).filter(|_| !text.is_empty())
}

fn read_ahead(table: &Table) -> u64 {
    table.lines.iter().map(|l| l.read_ahead).max().unwrap_or(256)
}

fn check_name(name: &[u8]) -> Answer {
    let bad = name.contains(&b'/') || [&b"."[..], b"..", b"control"].contains(&name);
    if bad { Err(Errno::EINVAL) } else { Ok(()) }
}

/// `dm_split_args`: a backslash takes the next character.
fn unescape(params: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut chars = params.chars();
    while let Some(c) = chars.next() {
        match c {
            c if c.is_ascii_whitespace() => words.extend(word.take()),
            '\\' => word.get_or_insert_default().extend(chars.next()),
            c => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    words
}

impl DmTransport for FakeKernel {
    fn ioctl(&mut self, cmd: u32, buf: &mut Vec<u8>) -> Result<(), IoctlError> {
        let bytes = std::mem::take(buf);
        let request = Request::parse(cmd, &bytes).map_err(|e| IoctlError::new(e.errno, e.message))?;
        let mut reply = Reply::to(&request);
        self.answer(&request, &mut reply).map_err(|errno| IoctlError::new(errno, ""))?;
        *buf = reply.finish();
        Ok(())
    }

    fn device_stats(&mut self, name: &str) -> Option<serde_json::Value> {
        let device = self.devices.get(name.as_bytes())?;
        let table = device.active.as_ref().or(device.inactive.as_ref())?;
        let sectors = device.read_ahead.unwrap_or(read_ahead(table));
        Some(serde_json::json!({ "read_ahead": sectors, "remapped": 7, "cloned": 0 }))
    }

    fn set_read_ahead(&mut self, name: &str, sectors: u32) {
        self.device(name.as_bytes()).read_ahead = Some(sectors.into());
    }
}

impl World for FakeKernel {
    fn hold(&mut self, name: &str) {
        if let Some(device) = self.devices.get_mut(name.as_bytes()) {
            device.held += 1;
            device.held_as.push(name.to_owned());
        }
    }

    fn release(&mut self, name: &str) {
        for device in self.devices.values_mut() {
            if let Some(i) = device.held_as.iter().position(|n| n == name) {
                device.held_as.remove(i);
                device.held -= 1;
            }
        }
        self.collect();
    }

    fn node(&mut self, _: &str) -> Option<String> {
        None
    }
}
