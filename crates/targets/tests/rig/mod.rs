//! A registry over disks that the test sees into.
#![allow(dead_code, missing_docs, unreachable_pub)]

use std::any::Any;
use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use udm_base::{Errno, Sector, Sectors};
use udm_core::*;
use udm_io::*;

/// A disk in memory that logs what it is asked, holds bios when told to, and has any limits.
pub struct Disk {
    name: String,
    memory: Memory,
    pub limits: Mutex<Limits>,
    log: Mutex<Vec<String>>,
    held: Mutex<Vec<Bio>>,
    pub holding: AtomicBool,
    pub failing: AtomicBool,
    pub hold_if: Mutex<Option<Filter>>,
    pub fail_if: Mutex<Option<Filter>>,
    /// What all disks of the rig were asked, in order.
    pub all: Log,
}

pub type Filter = Box<dyn Fn(&Bio) -> bool + Send>;
pub type Log = Arc<Mutex<Vec<String>>>;

impl Disk {
    pub fn new(name: &str, sectors: u64, limits: Limits, all: &Log) -> Arc<Self> {
        Arc::new(Self {
            name: name.into(),
            memory: Memory::new(Sectors::new(sectors)).unwrap(),
            limits: Mutex::new(limits),
            log: Mutex::default(),
            held: Mutex::default(),
            holding: AtomicBool::new(false),
            failing: AtomicBool::new(false),
            hold_if: Mutex::default(),
            fail_if: Mutex::default(),
            all: all.clone(),
        })
    }

    /// What it holds.
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// What was asked since the last call.
    pub fn log(&self) -> Vec<String> {
        std::mem::take(&mut self.log.lock().unwrap())
    }

    pub fn held(&self) -> usize {
        self.held.lock().unwrap().len()
    }

    /// Serves what is held, from this thread.
    pub fn release(&self) -> usize {
        let bios = std::mem::take(&mut *self.held.lock().unwrap());
        let n = bios.len();
        for bio in bios {
            let status = self.memory.serve(&bio);
            bio.end(status);
        }
        n
    }

    /// Makes its first sectors zero, as a COW device must be for a new snapshot.
    pub fn clear_header(self: &Arc<Self>) {
        let io = BlockingIo::new(&Domain::default(), self.clone()).unwrap();
        io.write(Sector::ZERO, &[0; 8192], OpFlags::NONE).unwrap();
    }

    /// Serves what was held last.
    pub fn release_last(&self) {
        let bio = self.held.lock().unwrap().pop().expect("one is held");
        let status = self.memory.serve(&bio);
        bio.end(status);
    }

    pub fn release_with(&self, status: Status) {
        let bios = std::mem::take(&mut *self.held.lock().unwrap());
        bios.into_iter().for_each(|b| b.end(status));
    }
}

impl BlockDevice for Disk {
    fn submit(&self, _: &Cx<'_>, bio: Bio) -> Option<Bio> {
        let fua = if bio.flags().contains(OpFlags::FUA) { " fua" } else { "" };
        self.log.lock().unwrap().push(format!("{bio:?}{fua}"));
        self.all.lock().unwrap().push(format!("{}: {bio:?}{fua}", self.name));
        let is = |filter: &Mutex<Option<Filter>>| filter.lock().unwrap().as_ref().is_some_and(|f| f(&bio));
        if self.failing.load(Ordering::Relaxed) || is(&self.fail_if) {
            bio.end(Status::Io);
        } else if self.holding.load(Ordering::Relaxed) || is(&self.hold_if) {
            self.held.lock().unwrap().push(bio);
        } else {
            let status = self.memory.serve(&bio);
            bio.end(status);
        }
        None
    }
    fn sectors(&self) -> Sectors {
        self.memory.sectors()
    }
    fn limits(&self) -> Limits {
        *self.limits.lock().unwrap()
    }
    fn id(&self) -> DeviceId {
        DeviceId::Anonymous(std::ptr::from_ref(self) as usize)
    }
    fn name(&self) -> String {
        self.name.clone()
    }
    fn as_any(&self) -> &dyn Any {
        self
    }
}

type Disks = Arc<Mutex<HashMap<String, Arc<dyn BlockDevice>>>>;

pub struct Rig {
    pub domain: Domain,
    pub registry: Registry,
    disks: Disks,
    all: Log,
}

impl Default for Rig {
    fn default() -> Self {
        Self::with_types(udm_targets::TARGETS)
    }
}

impl Rig {
    pub fn with_types(types: &'static [&'static TargetType]) -> Self {
        Self::with(types, Domain::default())
    }

    pub fn with(types: &'static [&'static TargetType], domain: Domain) -> Self {
        let disks: Disks = Arc::default();
        let known = disks.clone();
        let host = move |r: &HostRequest<'_>| -> Result<Arc<dyn BlockDevice>, Error> {
            match known.lock().unwrap().get(r.spec) {
                Some(disk) => Ok(disk.clone()),
                None => Err(Error::new(Errno::ENOENT, format!("{}: no such file", r.spec))),
            }
        };
        Self { registry: Registry::new(domain.clone(), types, Box::new(host)), domain, disks, all: Log::default() }
    }

    /// What all disks were asked since the last call, in order.
    pub fn log(&self) -> Vec<String> {
        std::mem::take(&mut self.all.lock().unwrap())
    }

    pub fn disk(&self, name: &str, sectors: u64) -> Arc<Disk> {
        self.disk_with(name, sectors, Limits::default())
    }

    pub fn disk_with(&self, name: &str, sectors: u64, limits: Limits) -> Arc<Disk> {
        let disk = Disk::new(name, sectors, limits, &self.all);
        self.add(name, disk.clone());
        disk
    }

    /// A device that tables can name.
    pub fn add(&self, name: &str, dev: Arc<dyn BlockDevice>) {
        self.disks.lock().unwrap().insert(name.into(), dev);
    }

    /// The device that tables know by that name.
    pub fn named(&self, name: &str) -> Option<Arc<dyn BlockDevice>> {
        self.disks.lock().unwrap().get(name).cloned()
    }

    /// A running device; `{name}` in the table is that device's number.
    pub fn device(&self, name: &str, table: &str) -> Arc<MappedDevice> {
        let md = self.registry.create(name, "", None).unwrap();
        self.reload(&md, table);
        md
    }

    pub fn load(&self, md: &Arc<MappedDevice>, table: &str, read_only: bool) -> Result<(), Error> {
        let mut text = table.to_owned();
        for other in self.registry.list() {
            text = text.replace(&format!("{{{}}}", other.device_name()), &other.devt().to_string());
        }
        md.load(&TableLine::parse_all(&text).unwrap(), read_only, Path::new("/"))
    }

    pub fn reload(&self, md: &Arc<MappedDevice>, table: &str) {
        self.load(md, table, false).unwrap_or_else(|e| panic!("{e}"));
        resume(md);
    }

    pub fn io(&self, md: &Arc<MappedDevice>) -> BlockingIo {
        BlockingIo::new(&self.domain, md.clone()).unwrap()
    }
}

pub fn suspend(md: &Arc<MappedDevice>) {
    md.suspend(SuspendOptions::default(), &|| false).unwrap();
}

pub fn resume(md: &Arc<MappedDevice>) {
    md.resume(SuspendOptions::default(), &|| false).unwrap();
}

/// Sectors that each say where they were written, and by which generation.
pub fn pattern(sector: u64, count: u64, generation: u64) -> Vec<u8> {
    (sector..sector + count)
        .flat_map(|s| (0..32).flat_map(move |_| [s, generation]).flat_map(u64::to_le_bytes))
        .collect()
}

pub fn read(io: &BlockingIo, sector: u64, count: u64) -> Vec<u8> {
    let mut buf = vec![0xaa; count as usize * 512];
    io.read(Sector::new(sector), &mut buf).unwrap();
    buf
}

pub fn write(io: &BlockingIo, sector: u64, count: u64, generation: u64) {
    io.write(Sector::new(sector), &pattern(sector, count, generation), OpFlags::NONE).unwrap();
}

/// A client that has several requests out, and looks at each when it likes.
pub struct Client {
    channel: Channel,
    dev: Attached,
    buffers: HashMap<u64, Vec<u8>>,
    ended: HashMap<u64, Status>,
    next: u64,
}

impl Client {
    pub fn new(rig: &Rig, md: &Arc<MappedDevice>) -> Self {
        let channel = rig.domain.channel().unwrap();
        let dev = channel.attach(md.clone());
        Self { channel, dev, buffers: HashMap::new(), ended: HashMap::new(), next: 0 }
    }

    pub fn write(&mut self, sector: u64, data: Vec<u8>, flags: OpFlags) -> u64 {
        self.submit(Op::Write, flags, sector, data)
    }

    pub fn read(&mut self, sector: u64, count: u64) -> u64 {
        self.submit(Op::Read, OpFlags::NONE, sector, vec![0xaa; count as usize * 512])
    }

    pub fn submit(&mut self, op: Op, flags: OpFlags, sector: u64, mut data: Vec<u8>) -> u64 {
        self.next += 1;
        // SAFETY: the buffer is kept until the completion has been taken.
        assert!(unsafe { self.channel.submit(self.dev, op, flags, Sector::new(sector), &mut data, self.next) });
        self.buffers.insert(self.next, data);
        self.next
    }

    pub fn range(&mut self, op: Op, flags: OpFlags, sector: u64, count: u64) -> u64 {
        self.next += 1;
        let (sector, count) = (Sector::new(sector), Sectors::new(count));
        assert!(self.channel.submit_range(self.dev, op, flags, sector, count, self.next));
        self.next
    }

    /// Polls until nothing moves any more, and says how a request ended, if it did.
    pub fn status(&mut self, token: u64) -> Option<Status> {
        while self.channel.poll() > 0 {}
        while let Some(done) = self.channel.completed() {
            self.ended.insert(done.token, done.status);
        }
        self.ended.get(&token).copied()
    }

    /// Waits for a request.
    pub fn wait(&mut self, token: u64) -> Status {
        loop {
            if let Some(status) = self.status(token) {
                return status;
            }
            self.channel.wait(None, &mut Vec::new()).unwrap();
        }
    }

    /// What a read that has ended brought.
    pub fn data(&self, token: u64) -> &[u8] {
        &self.buffers[&token]
    }
}
