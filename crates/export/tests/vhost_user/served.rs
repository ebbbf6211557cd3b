//! A server for one test, and the front ends that meet it.

use std::any::Any;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use udm_base::Sectors;
use udm_export::vhost_user::front::{Done, FrontEnd, FrontOptions, FrontQueue, Kind, Part};
use udm_export::vhost_user::{Handed, HandedSession, Mode, Prepared, Server};
use udm_export::{Client, Export, Exports, OpenError, Refused};
use udm_io::{Bio, BlockDevice, Cx, DeviceId, Domain, Limits, Memory, Op, Status};

/// Bytes of the device.
pub(crate) const SIZE: u64 = 16 << 20;

/// One device, and how many have it open.
#[derive(Clone)]
struct One {
    device: Arc<dyn BlockDevice>,
    read_only: bool,
    open: Arc<AtomicUsize>,
}

/// Counts down when it goes.
struct Counted(Arc<AtomicUsize>);

impl Exports for One {
    fn list(&self) -> Vec<Arc<dyn Export>> {
        Vec::new()
    }
    fn find(&self, name: &str, _: &Client) -> Result<Arc<dyn Export>, OpenError> {
        match name {
            "disk" => Ok(Arc::new(self.clone())),
            _ => Err(OpenError::Unknown(name.into())),
        }
    }
}

impl Export for One {
    fn name(&self) -> String {
        "disk".into()
    }
    fn device(&self) -> Arc<dyn BlockDevice> {
        self.device.clone()
    }
    fn read_only(&self) -> bool {
        self.read_only
    }
    fn open(&self) -> Result<Box<dyn Any + Send>, Refused> {
        self.open.fetch_add(1, Ordering::SeqCst);
        Ok(Box::new(Counted(self.open.clone())))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Memory whose size can be changed.
pub(crate) struct Sized {
    memory: Memory,
    sectors: AtomicU64,
    no_discards: AtomicBool,
}

impl Sized {
    pub(crate) fn new() -> Self {
        let memory = Memory::new(Sectors::in_bytes(SIZE)).unwrap();
        Self { memory, sectors: AtomicU64::new(SIZE / 512), no_discards: AtomicBool::new(false) }
    }

    /// As after another table was loaded.
    pub(crate) fn forbid_discards(&self) {
        self.no_discards.store(true, Ordering::SeqCst);
    }

    pub(crate) fn resize(&self, sectors: u64) {
        self.sectors.store(sectors, Ordering::SeqCst);
    }
}

impl BlockDevice for Sized {
    fn submit(&self, _: &Cx<'_>, bio: Bio) -> Option<Bio> {
        let status = if bio.op() == Op::Flush { Status::Ok } else { self.memory.serve(&bio) };
        bio.end(status);
        None
    }
    fn sectors(&self) -> Sectors {
        Sectors::new(self.sectors.load(Ordering::SeqCst))
    }
    fn limits(&self) -> Limits {
        let limits = Limits::default();
        match self.no_discards.load(Ordering::SeqCst) {
            true => Limits { max_discard: Sectors::ZERO, ..limits },
            false => limits,
        }
    }
    fn id(&self) -> DeviceId {
        DeviceId::Anonymous(std::ptr::from_ref(self) as usize)
    }
    fn name(&self) -> String {
        "sized".into()
    }
    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// How a test wants its server.
#[derive(Clone, Copy)]
pub(crate) struct Want {
    pub(crate) queues: u16,
    pub(crate) mode: Mode,
    pub(crate) read_only: bool,
}

impl Default for Want {
    fn default() -> Self {
        Self { queues: 4, mode: Mode::Interrupt, read_only: false }
    }
}

pub(crate) struct Served {
    pub(crate) server: Option<Server>,
    pub(crate) domain: Domain,
    pub(crate) path: PathBuf,
    pub(crate) open: Arc<AtomicUsize>,
    device: Arc<dyn BlockDevice>,
    want: Want,
    _dir: tempfile::TempDir,
}

impl Served {
    pub(crate) fn new(device: Arc<dyn BlockDevice>, want: Want) -> Self {
        Self::of(Domain::default(), device, want)
    }

    pub(crate) fn of(domain: Domain, device: Arc<dyn BlockDevice>, want: Want) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("disk.sock");
        let mut this = Self { server: None, domain, path, open: Arc::default(), device, want, _dir: dir };
        this.start();
        this
    }

    /// A device of memory.
    pub(crate) fn memory() -> Self {
        Self::new(Arc::new(Sized::new()), Want::default())
    }

    /// Starts a server, after the one before has ended.
    pub(crate) fn start(&mut self) {
        let Want { queues, mode, .. } = self.want;
        let one = self.one();
        let builder = Server::builder(&self.path).queues(queues).queue_size(256).mode(mode);
        self.server = Some(builder.start(&self.domain, Arc::new(one), "disk").unwrap());
    }

    fn one(&self) -> One {
        One { device: self.device.clone(), read_only: self.want.read_only, open: self.open.clone() }
    }

    /// Checks a front end of another server.
    pub(crate) fn prepare(&self, session: HandedSession) -> Result<Prepared, String> {
        session.prepare(&self.one(), "disk")
    }

    /// Another server goes on, as another process would.
    pub(crate) fn pass_on(&mut self) {
        self.pass_on_while(|| {});
    }

    /// The same; `meanwhile` happens while there is no server.
    pub(crate) fn pass_on_while(&mut self, meanwhile: impl FnOnce()) {
        let server = self.server.take().unwrap();
        assert!(server.pause(Duration::from_secs(60)), "memory keeps no request");
        let Handed { listener, session } = server.hand_over().unwrap();
        drop(server);
        assert!(self.path.exists(), "its socket stays");
        assert_eq!(self.open.load(Ordering::SeqCst), 0, "it has nothing open");
        meanwhile();
        let mut builder = Server::builder(&self.path).queues(self.want.queues).queue_size(256).mode(self.want.mode);
        builder = builder.adopt(listener);
        if let Some(HandedSession { state, input, fds }) = session {
            let state = serde_json::from_str(&serde_json::to_string(&state).unwrap()).unwrap();
            builder = builder.go_on(self.prepare(HandedSession { state, input, fds }).unwrap());
        }
        self.server = Some(builder.start(&self.domain, Arc::new(self.one()), "disk").unwrap());
    }

    /// Ends the server at once, whatever is out.
    pub(crate) fn stop(&mut self) {
        self.server = None;
    }

    /// A front end with one queue.
    pub(crate) fn front(&self) -> (FrontEnd, FrontQueue) {
        self.front_with(FrontOptions::default())
    }

    pub(crate) fn front_with(&self, options: FrontOptions) -> (FrontEnd, FrontQueue) {
        let (front, mut queues) = FrontEnd::connect(&self.path, options).unwrap();
        (front, queues.remove(0))
    }
}

pub(crate) use udm_testing::until;

/// Waits for the next request that is done: a side that was not told by the other stays asleep, and is found out.
pub(crate) fn next(queue: &mut FrontQueue) -> Done {
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(50) {
        queue.kick();
        if let Some(done) = queue.completed() {
            return done;
        }
        queue.wait(Duration::from_secs(60)).unwrap();
    }
    panic!("{} requests are not done, or their end was not told", queue.out());
}

/// Does one request and waits for it.
pub(crate) fn perform(queue: &mut FrontQueue, what: Kind, sector: u64, data: &[Part]) -> Done {
    assert!(queue.submit(what, sector, data, 77));
    let done = next(queue);
    assert_eq!(done.token, 77);
    done
}

/// A part of the memory for data.
pub(crate) fn part(front: &FrontEnd, offset: u64, len: u32) -> Part {
    Part { guest: front.data_guest(offset), len }
}

/// Writes `bytes` to a sector, by way of the start of the memory for data.
pub(crate) fn write(front: &FrontEnd, queue: &mut FrontQueue, sector: u64, bytes: &[u8]) -> u8 {
    front.memory().write(front.data(), bytes);
    perform(queue, Kind::Write, sector, &[part(front, 0, bytes.len() as u32)]).status
}

/// Reads bytes from a sector.
pub(crate) fn read(front: &FrontEnd, queue: &mut FrontQueue, sector: u64, len: u32) -> Vec<u8> {
    let done = perform(queue, Kind::Read, sector, &[part(front, 65536, len)]);
    assert_eq!((done.status, done.written), (0, len + 1));
    front.memory().read(front.data() + 65536, len as usize)
}

/// A range of a discard or of zeroes.
pub(crate) fn range(sector: u64, sectors: u32, flags: u32) -> Vec<u8> {
    let mut bytes = sector.to_le_bytes().to_vec();
    bytes.extend(sectors.to_le_bytes());
    bytes.extend(flags.to_le_bytes());
    bytes
}
