//! A front end of vhost-user-blk: what a virtual machine monitor does, without the machine. For tests and measurements;
//! it speaks to any back end.

mod memory;
mod queue;

pub use memory::SharedMemory;
pub use queue::{Done, FrontQueue, Kind, PARTS, Part, RawDesc};

use super::blk::{CONFIG, Config, feature};
use super::wire::{self, BACKEND_CONFIG_CHANGE, Inbox, Message, RegionSpec, WireError, protocol, request};
use queue::Shape;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with, socketpair};
use std::io;
use std::path::Path;
use std::sync::Arc;
use udm_base::Sectors;

/// Where the first region of memory begins for the guest.
const GUEST: u64 = 1 << 32;
/// How long a back end may take to answer: one that drains a queue waits for its device.
const PATIENCE: Timespec = Timespec { tv_sec: 60, tv_nsec: 0 };

/// What goes wrong with a back end.
#[derive(Debug, thiserror::Error)]
pub enum FrontError {
    /// The system's, while doing something.
    #[error("{0}: {1}")]
    System(String, #[source] io::Error),
    /// The back end does not do what it should.
    #[error("{0}")]
    Protocol(String),
    /// The back end has hung up.
    #[error("the back end has hung up")]
    Closed,
    /// It has refused a request.
    #[error("the back end has refused request {0}")]
    Refused(u32),
}

impl From<WireError> for FrontError {
    fn from(error: WireError) -> Self {
        match error {
            WireError::Closed => Self::Closed,
            WireError::Broken(text) => Self::Protocol(text),
            WireError::Io(error) => Self::System("speaking to the back end".into(), error),
        }
    }
}

/// How a front end is to be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FrontOptions {
    /// Queues that it uses.
    pub queues: u16,
    /// Entries of each, a power of two.
    pub queue_size: u16,
    /// Bytes of memory for data; rings come on top.
    pub memory: u64,
    /// Use indirect tables if the back end has them.
    pub indirect: bool,
    /// Use event indices if the back end has them.
    pub event_idx: bool,
    /// Look for what is done, rather than be told.
    pub polled: bool,
    /// Ask for memory that tells what is in flight, if the back end has it.
    pub inflight: bool,
    /// Seal the memory against being cut off.
    pub sealed: bool,
    /// Tell the back end that the driver knows of no cache.
    pub write_through: bool,
}

impl Default for FrontOptions {
    fn default() -> Self {
        Self {
            queues: 1,
            queue_size: 128,
            memory: 1 << 20,
            indirect: true,
            event_idx: true,
            polled: false,
            inflight: true,
            sealed: true,
            write_through: false,
        }
    }
}

/// What a back end tells of its disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FrontConfig {
    /// The size.
    pub sectors: Sectors,
    /// Parts of a request's data at most.
    pub seg_max: u32,
    /// Bytes of a block.
    pub block_size: u32,
    /// Queues that it has.
    pub queues: u16,
    /// Sectors of a discard's range at most; 0 without discards.
    pub max_discard: u32,
    /// Writes are refused.
    pub read_only: bool,
}

/// Memory that tells what is in flight.
struct Inflight {
    file: OwnedFd,
    /// The message that describes it, to be said again.
    body: Vec<u8>,
}

/// A front end that is connected to a back end.
pub struct FrontEnd {
    options: FrontOptions,
    socket: OwnedFd,
    inbox: Inbox,
    /// Our end of the socket on which the back end speaks first.
    backend: Option<OwnedFd>,
    backend_inbox: Inbox,
    features: u64,
    protocol: u64,
    config: FrontConfig,
    memory: Arc<SharedMemory>,
    more: Vec<Arc<SharedMemory>>,
    inflight: Option<Inflight>,
    /// Of each queue: addresses, and what is rung.
    rings: Vec<([u64; 3], Arc<OwnedFd>, Arc<OwnedFd>)>,
    data: u64,
}

impl FrontEnd {
    /// Connects, shares memory, and starts the queues. The queues may go to threads of their own; they work as long as
    /// the front end is there. Blocks as long as the back end takes to answer.
    pub fn connect(path: &Path, options: FrontOptions) -> Result<(Self, Vec<FrontQueue>), FrontError> {
        let mut this = Self::introduce(path, options)?;
        let (indirect, event_idx) = (this.has(feature::INDIRECT), this.has(feature::EVENT_IDX));
        let mut offset = 0;
        let mut shapes = Vec::new();
        for _ in 0..options.queues {
            let shape = Shape { size: options.queue_size, offset, indirect, event_idx, polled: options.polled };
            offset += shape.bytes();
            shapes.push(shape);
        }
        let system = |error| FrontError::System("sharing memory".into(), error);
        this.memory = Arc::new(SharedMemory::new(offset + options.memory, GUEST, options.sealed).map_err(system)?);
        this.data = offset;
        let queues = shapes.into_iter().map(|shape| FrontQueue::new(this.memory.clone(), shape).map_err(system));
        let queues = queues.collect::<Result<Vec<_>, _>>()?;
        this.rings = queues.iter().map(|q| (q.addresses(), q.kick.clone(), q.call.clone())).collect();
        this.describe()?;
        Ok((this, queues))
    }

    /// Connects to a back end that has come back, with the memory, rings and requests in flight that there are.
    pub fn reconnect(&mut self, path: &Path) -> Result<(), FrontError> {
        let again = Self::introduce(path, self.options)?;
        (self.socket, self.inbox) = (again.socket, again.inbox);
        (self.backend, self.backend_inbox) = (again.backend, again.backend_inbox);
        (self.features, self.protocol, self.config) = (again.features, again.protocol, again.config);
        self.describe()
    }

    /// Connects, negotiates, and asks for the configuration.
    fn introduce(path: &Path, options: FrontOptions) -> Result<Self, FrontError> {
        let system = |error: rustix::io::Errno| FrontError::System(format!("{}", path.display()), error.into());
        let socket =
            socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).map_err(system)?;
        connect(&socket, &SocketAddrUnix::new(path).map_err(system)?).map_err(system)?;
        rustix::io::ioctl_fionbio(&socket, true).map_err(system)?;
        let none = SharedMemory::new(4096, 0, false).map_err(|e| FrontError::System("memory".into(), e))?;
        let mut this = Self {
            options,
            socket,
            inbox: Inbox::default(),
            backend: None,
            backend_inbox: Inbox::default(),
            features: 0,
            protocol: 0,
            config: FrontConfig {
                sectors: Sectors::ZERO,
                seg_max: 0,
                block_size: 512,
                queues: 1,
                max_discard: 0,
                read_only: false,
            },
            memory: Arc::new(none),
            more: Vec::new(),
            inflight: None,
            rings: Vec::new(),
            data: 0,
        };
        this.tell(request::SET_OWNER, &[], &[])?;
        let offered = this.ask_number(request::GET_FEATURES)?;
        if offered & feature::PROTOCOL == 0 || offered & feature::VERSION_1 == 0 {
            return Err(FrontError::Protocol(format!("the back end offers the features {offered:#x} only")));
        }
        let protocols = this.ask_number(request::GET_PROTOCOL_FEATURES)?;
        use protocol as p;
        let wanted = p::MQ | p::REPLY_ACK | p::BACKEND_REQ | p::CONFIG | p::INFLIGHT_SHMFD | p::CONFIGURE_MEM_SLOTS;
        this.protocol = protocols & wanted;
        this.tell(request::SET_PROTOCOL_FEATURES, &this.protocol.to_ne_bytes(), &[])?;
        let queues = if this.protocol & p::MQ != 0 { this.ask_number(request::GET_QUEUE_NUM)? } else { 1 };
        if u64::from(options.queues) > queues {
            return Err(FrontError::Protocol(format!(
                "the back end has {queues} queues; {} are wanted",
                options.queues
            )));
        }
        use feature as f;
        let mut features = f::SEG_MAX | f::RO | f::BLK_SIZE | f::FLUSH | f::TOPOLOGY | f::MQ | f::DISCARD;
        features |= f::WRITE_ZEROES | f::VERSION_1 | f::PROTOCOL;
        features |= if options.indirect { f::INDIRECT } else { 0 };
        features |= if options.event_idx { f::EVENT_IDX } else { 0 };
        features &= if options.write_through { !f::FLUSH } else { !0 };
        this.features = features & offered;
        this.tell(request::SET_FEATURES, &this.features.to_ne_bytes(), &[])?;
        if this.protocol & p::BACKEND_REQ != 0 {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None).map_err(system)?;
            this.tell(request::SET_BACKEND_REQ_FD, &[], &[theirs.as_fd()])?;
            this.backend = Some(ours);
        }
        this.reload_config()?;
        Ok(this)
    }

    /// Tells of the memory and the rings, and starts them.
    fn describe(&mut self) -> Result<(), FrontError> {
        let regions: Vec<Arc<SharedMemory>> = std::iter::once(&self.memory).chain(&self.more).cloned().collect();
        let mut body = Vec::new();
        body.extend((regions.len() as u32).to_ne_bytes());
        body.extend(0u32.to_ne_bytes());
        regions.iter().for_each(|region| body.extend(spec(region).bytes()));
        let files: Vec<_> = regions.iter().map(|region| region.file().as_fd()).collect();
        self.tell(request::SET_MEM_TABLE, &body, &files)?;
        if self.options.inflight && self.protocol & protocol::INFLIGHT_SHMFD != 0 {
            self.share_inflight()?;
        }
        for index in 0..self.rings.len() {
            self.start_ring(index, 0)?;
        }
        Ok(())
    }

    fn share_inflight(&mut self) -> Result<(), FrontError> {
        if self.inflight.is_none() {
            let mut body = vec![0; 24];
            body[16..18].copy_from_slice(&self.options.queues.to_ne_bytes());
            body[18..20].copy_from_slice(&self.options.queue_size.to_ne_bytes());
            wire::send(&self.socket, request::GET_INFLIGHT_FD, wire::Kind::Request, &body, &[])?;
            let mut reply = self.reply(request::GET_INFLIGHT_FD)?;
            let file = reply.take_fd().map_err(FrontError::Protocol)?;
            self.inflight = Some(Inflight { file, body: reply.body().to_vec() });
        }
        let Inflight { file, body } = self.inflight.as_ref().expect("asked for above");
        let (file, body) = (file.try_clone().map_err(|e| FrontError::System("a descriptor".into(), e))?, body.clone());
        self.tell(request::SET_INFLIGHT_FD, &body, &[file.as_fd()])
    }

    /// Starts a ring at a place of its available ring.
    pub fn start_ring(&mut self, index: usize, base: u16) -> Result<(), FrontError> {
        let ([desc, avail, used], kick, call) = self.rings[index].clone();
        let state = |n: u32| [index as u32, n].iter().flat_map(|w| w.to_ne_bytes()).collect::<Vec<_>>();
        self.tell(request::SET_VRING_NUM, &state(self.options.queue_size.into()), &[])?;
        self.tell(request::SET_VRING_BASE, &state(base.into()), &[])?;
        let mut body = [index as u32, 0].iter().flat_map(|w| w.to_ne_bytes()).collect::<Vec<_>>();
        [desc, used, avail, 0].iter().for_each(|w| body.extend(w.to_ne_bytes()));
        self.tell(request::SET_VRING_ADDR, &body, &[])?;
        // Also when it is polled: libvhost-user gives up without.
        self.tell(request::SET_VRING_CALL, &(index as u64).to_ne_bytes(), &[call.as_fd()])?;
        self.tell(request::SET_VRING_KICK, &(index as u64).to_ne_bytes(), &[kick.as_fd()])?;
        self.tell(request::SET_VRING_ENABLE, &state(1), &[])
    }

    /// Stops a ring; gives the place where its available ring goes on. Blocks until its requests are done.
    pub fn stop_ring(&mut self, index: usize) -> Result<u16, FrontError> {
        let body: Vec<u8> = [index as u32, 0].iter().flat_map(|w| w.to_ne_bytes()).collect();
        wire::send(&self.socket, request::GET_VRING_BASE, wire::Kind::Request, &body, &[])?;
        let reply = self.reply(request::GET_VRING_BASE)?;
        let mut fields = reply.fields();
        let base = fields.u32().and_then(|_| fields.u32()).map_err(FrontError::Protocol)?;
        Ok(base as u16)
    }

    /// Another driver takes the rings over where they are, as after firmware or a reboot: it knows of no cache, or of
    /// one.
    pub fn change_driver(&mut self, write_through: bool) -> Result<(), FrontError> {
        let bases = (0..self.rings.len()).map(|index| self.stop_ring(index)).collect::<Result<Vec<_>, _>>()?;
        self.set_features(if write_through {
            self.features & !feature::FLUSH
        } else {
            self.features | feature::FLUSH
        })?;
        bases.into_iter().enumerate().try_for_each(|(index, base)| self.start_ring(index, base))
    }

    /// The features that the back end was told of.
    pub fn features(&self) -> u64 {
        self.features
    }

    /// Tells the back end which features there are from now on.
    pub fn set_features(&mut self, features: u64) -> Result<(), FrontError> {
        self.tell(request::SET_FEATURES, &features.to_ne_bytes(), &[])?;
        self.features = features;
        Ok(())
    }

    /// Shares more memory, at the address `guest` of the guest.
    pub fn add_memory(&mut self, bytes: u64, guest: u64) -> Result<Arc<SharedMemory>, FrontError> {
        let system = |error| FrontError::System("sharing memory".into(), error);
        let memory = Arc::new(SharedMemory::new(bytes, guest, self.options.sealed).map_err(system)?);
        let mut body = vec![0; 8];
        body.extend(spec(&memory).bytes());
        self.tell(request::ADD_MEM_REG, &body, &[memory.file().as_fd()])?;
        self.more.push(memory.clone());
        Ok(memory)
    }

    /// Takes memory back that was added.
    pub fn remove_memory(&mut self, memory: &Arc<SharedMemory>) -> Result<(), FrontError> {
        let mut body = vec![0; 8];
        body.extend(spec(memory).bytes());
        self.tell(request::REM_MEM_REG, &body, &[])?;
        self.more.retain(|m| !Arc::ptr_eq(m, memory));
        Ok(())
    }

    /// What the disk is like, as it was told last.
    pub fn config(&self) -> &FrontConfig {
        &self.config
    }

    /// The memory that is shared; the first [`data`](Self::data) bytes are the queues' own.
    pub fn memory(&self) -> &Arc<SharedMemory> {
        &self.memory
    }

    /// Where the memory for data begins, on a page.
    pub fn data(&self) -> u64 {
        self.data
    }

    /// The address in the guest of a byte of the memory for data.
    pub fn data_guest(&self, offset: u64) -> u64 {
        GUEST + self.data + offset
    }

    /// Where `bytes` of the memory for data at `offset` are in this process. They live as long as
    /// [`memory`](Self::memory).
    pub fn data_at(&self, offset: u64, bytes: u64) -> *mut u8 {
        self.memory.at(self.data + offset, bytes)
    }

    /// Asks for the configuration again.
    pub fn reload_config(&mut self) -> Result<(), FrontError> {
        if self.protocol & protocol::CONFIG == 0 {
            return Err(FrontError::Protocol("the back end tells no configuration".into()));
        }
        let mut body: Vec<u8> = [0, CONFIG as u32, 0].iter().flat_map(|w| w.to_ne_bytes()).collect();
        body.resize(12 + CONFIG, 0);
        wire::send(&self.socket, request::GET_CONFIG, wire::Kind::Request, &body, &[])?;
        let reply = self.reply(request::GET_CONFIG)?;
        let mut fields = reply.fields();
        fields.bytes(12).map_err(FrontError::Protocol)?;
        let short = || FrontError::Protocol("the back end tells too short a configuration".into());
        let config = Config::parse(fields.rest()).ok_or_else(short)?;
        self.config = FrontConfig {
            sectors: config.sectors,
            seg_max: config.seg_max,
            block_size: config.block_size,
            queues: config.queues,
            max_discard: if self.has(feature::DISCARD) { config.max_discard } else { 0 },
            read_only: self.has(feature::RO),
        };
        Ok(())
    }

    /// Waits for the back end to say that the configuration has changed; false when it has not until `timeout`.
    pub fn wait_for_change(&mut self, timeout: std::time::Duration) -> Result<bool, FrontError> {
        let Some(backend) = &self.backend else { return Ok(false) };
        let timeout = Timespec { tv_sec: timeout.as_secs() as i64, tv_nsec: timeout.subsec_nanos().into() };
        match self.backend_inbox.receive(backend)? {
            Some(message) => return Ok(message.request == BACKEND_CONFIG_CHANGE),
            None => wait_readable(backend.as_fd(), timeout)?,
        };
        let message = self.backend_inbox.receive(backend)?;
        Ok(message.is_some_and(|message| message.request == BACKEND_CONFIG_CHANGE))
    }

    /// Whether the back end has hung up.
    pub fn has_hung_up(&mut self) -> bool {
        matches!(self.inbox.receive(&self.socket), Err(WireError::Closed))
    }

    /// Says something, whatever it is, and waits for the answer that says whether it was taken, if the back end gives
    /// such answers.
    pub fn tell(&mut self, request: u32, body: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), FrontError> {
        let acked = self.protocol & protocol::REPLY_ACK != 0 && request != request::SET_PROTOCOL_FEATURES;
        let kind = if acked { wire::Kind::Acked } else { wire::Kind::Request };
        wire::send(&self.socket, request, kind, body, fds)?;
        if !acked {
            return Ok(());
        }
        match self.reply(request)?.fields().u64().map_err(FrontError::Protocol)? {
            0 => Ok(()),
            _ => Err(FrontError::Refused(request)),
        }
    }

    /// Says bytes, which need be no message. For tests.
    pub fn say(&self, bytes: &[u8]) -> Result<(), FrontError> {
        let sent = rustix::io::write(&self.socket, bytes);
        sent.map(|_| ()).map_err(|errno| FrontError::System("speaking to the back end".into(), errno.into()))
    }

    /// The number that the next answer consists of, whatever it answers. For tests.
    pub fn hear(&mut self) -> Result<u64, FrontError> {
        loop {
            if let Some(message) = self.inbox.receive(&self.socket)? {
                return message.fields().u64().map_err(FrontError::Protocol);
            }
            if !wait_readable(self.socket.as_fd(), PATIENCE)? {
                return Err(FrontError::Protocol("nothing is answered".into()));
            }
        }
    }

    fn ask_number(&mut self, request: u32) -> Result<u64, FrontError> {
        wire::send(&self.socket, request, wire::Kind::Request, &[], &[])?;
        self.reply(request)?.fields().u64().map_err(FrontError::Protocol)
    }

    fn reply(&mut self, request: u32) -> Result<Message, FrontError> {
        loop {
            if let Some(message) = self.inbox.receive(&self.socket)? {
                return match message.is_reply() && message.request == request {
                    true => Ok(message),
                    false => Err(FrontError::Protocol(format!("{} is answered instead of {request}", message.request))),
                };
            }
            if !wait_readable(self.socket.as_fd(), PATIENCE)? {
                return Err(FrontError::Protocol(format!("request {request} is not answered")));
            }
        }
    }

    fn has(&self, feature: u64) -> bool {
        self.features & feature != 0
    }
}

fn wait_readable(fd: BorrowedFd<'_>, timeout: Timespec) -> Result<bool, FrontError> {
    let mut polled = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
    match poll(&mut polled, Some(&timeout)) {
        Ok(n) => Ok(n > 0),
        Err(rustix::io::Errno::INTR) => Ok(true),
        Err(errno) => Err(FrontError::System("waiting for the back end".into(), errno.into())),
    }
}

fn spec(memory: &SharedMemory) -> RegionSpec {
    RegionSpec { guest: memory.guest(), size: memory.len(), user: memory.user(), offset: 0 }
}
