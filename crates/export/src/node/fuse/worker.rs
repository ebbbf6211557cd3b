//! One thread of the server: a channel, a queue of the kernel's requests, and the loop that drives both.

use super::engine::{DATA_AT, Engine, MAX_TRANSFER, RECEIVE_LEN, Tag, seek};
use super::request::{HEAD, Request, parse};
use super::steps;
use super::tree::{Inode, Node, Tree};
use super::uring::{Came, Remains, Uring};
use super::wire::{
    Attr, AttrOut, Dirent, EntryOut, FallocateIn, InHeader, InitIn, InitOut, LseekIn, LseekOut, MAJOR, MINOR,
    MINOR_LEAST, OpenIn, OpenOut, ReadIn, SetattrIn, StatfsOut, WriteIn, fattr, fopen, init, op,
};
use rustix::fd::OwnedFd;
use std::collections::VecDeque;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, mpsc};
use std::time::Duration;
use udm_base::{AlignedBuf, Errno};
use udm_io::{Domain, Nanos, OpFlags, Waker, Woken};
use zerocopy::{FromBytes, IntoBytes};

/// The key of the connection's descriptor.
const FUSE: u64 = 0;
/// The key of the ring's.
const RING: u64 = 1;
/// Requests that are taken in before the device is asked to go on.
const BATCH: usize = 32;
/// How long memory is kept after the last request.
const WARM: Duration = Duration::from_secs(1);
/// How often a worker looks for requests before it sleeps.
const LINGER: usize = 24;
/// Bytes of data under way in one worker, beyond which it takes no more requests in: enough for any device here, and little
/// enough to be set aside.
const MEMORY: usize = 8 << 20;
/// With the last request that was taken in, and what is received into.
pub(super) const MOST_MEMORY: usize = MEMORY + 4 * (1 << 20);
/// Requests of asynchronous callers that the kernel lets be under way; 12 unless asked for.
const MAX_BACKGROUND: u16 = 512;
/// Pages of one request.
const MAX_PAGES: u16 = (MAX_TRANSFER / 4096) as u16;
/// `fallocate` modes (`include/uapi/linux/falloc.h`).
const KEEP_SIZE: u32 = 1;
const PUNCH_HOLE: u32 = 2;
const ZERO_RANGE: u32 = 16;

/// What a worker is told by other threads.
pub(super) enum Command {
    /// Take requests by io_uring, too: the kernel has agreed.
    Register,
    /// A write may begin that has waited for others.
    Admit(u32),
    /// Take in every request that the kernel has by now, then answer.
    Reap(mpsc::Sender<()>),
    /// Take no more requests in, and answer when none is under way.
    Pause(mpsc::Sender<()>),
    /// Go on after a pause.
    Resume,
    /// Take no more requests in, finish what is under way, and end; at the latest at this time.
    End(Nanos),
}

/// The side of a worker that other threads see.
pub(super) struct Handle {
    commands: Mutex<VecDeque<Command>>,
    pending: AtomicBool,
    waker: Waker,
}

impl Handle {
    fn lock(&self) -> MutexGuard<'_, VecDeque<Command>> {
        self.commands.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells the worker something and wakes it. One that has ended hears nothing.
    pub(super) fn tell(&self, command: Command) {
        self.lock().push_back(command);
        self.pending.store(true, Ordering::Release);
        self.waker.wake();
    }
}

/// What all workers of a server share.
pub(super) struct Shared {
    pub(super) tree: Tree,
    /// Changes when a node's last file is closed.
    pub(super) closed: AtomicUsize,
    /// The kernel has ended the connection: it is unmounted.
    pub(super) gone: AtomicBool,
    /// Workers without a ring, each of which keeps all from using theirs.
    pub(super) ringless: AtomicUsize,
    /// Requests come by io_uring.
    pub(super) by_ring: AtomicBool,
    /// What rings have left, to be dropped when their threads have ended.
    pub(super) remains: Mutex<Vec<Remains>>,
    /// Workers that have not ended.
    pub(super) running: AtomicUsize,
    pub(super) handles: OnceLock<Vec<Arc<Handle>>>,
}

impl Shared {
    pub(super) fn new(tree: Tree) -> Self {
        Self {
            tree,
            closed: AtomicUsize::new(0),
            gone: AtomicBool::new(false),
            ringless: AtomicUsize::new(0),
            by_ring: AtomicBool::new(false),
            remains: Mutex::default(),
            running: AtomicUsize::new(0),
            handles: OnceLock::new(),
        }
    }

    /// Known before the first request.
    fn has_rings(&self) -> bool {
        self.ringless.load(Ordering::Acquire) == 0
    }

    fn handles(&self) -> &[Arc<Handle>] {
        self.handles.get().map_or(&[], Vec::as_slice)
    }
}

pub(super) struct Worker {
    engine: Engine,
    shared: Arc<Shared>,
    handle: Arc<Handle>,
    number: usize,
    /// What is received into. Out only while a request refers to it.
    staging: Option<AlignedBuf>,
    /// `Shared::closed` as it was last seen.
    closed: usize,
    watching: bool,
    /// The ring is in use.
    ring: bool,
    /// There may be requests on the descriptor, although they come by the ring.
    look: bool,
    ending: Option<Nanos>,
    paused: bool,
    /// Who waits for the pause.
    pausing: Option<mpsc::Sender<()>>,
}

/// What came of looking for requests.
#[derive(PartialEq, Eq)]
enum Received {
    /// There may be more.
    Some,
    /// There are no more now.
    Dry,
    /// There will be none.
    Gone,
}

impl Worker {
    /// Worker `number` of `workers`; `queues` of io_uring there are to be served, if that is wanted.
    pub(super) fn new(
        domain: &Domain,
        shared: Arc<Shared>,
        fuse: OwnedFd,
        (number, workers): (usize, usize),
        queues: Option<usize>,
    ) -> io::Result<Self> {
        let mut engine = Engine::new(domain, fuse, number)?;
        if let Some(queues) = queues {
            let payload = MAX_TRANSFER.max(usize::from(MAX_PAGES) * rustix::param::page_size());
            match Uring::new(engine.fuse(), (number, workers), queues, payload) {
                Ok(uring) => engine.uring = Some(uring),
                Err(error) => tracing::warn!("requests to nodes do not come by io_uring: {error}"),
            }
        }
        if engine.uring.is_none() {
            shared.ringless.fetch_add(1, Ordering::AcqRel);
        }
        shared.running.fetch_add(1, Ordering::AcqRel);
        let waker = engine.channel.waker();
        let handle = Arc::new(Handle { commands: Mutex::default(), pending: AtomicBool::new(false), waker });
        let staging = Some(engine.take_large());
        let closed = shared.closed.load(Ordering::Acquire);
        let (watching, ring, look, ending, paused, pausing) = (false, false, true, None, false, None);
        Ok(Self { engine, shared, handle, number, staging, closed, watching, ring, look, ending, paused, pausing })
    }

    pub(super) fn handle(&self) -> Arc<Handle> {
        self.handle.clone()
    }

    /// Serves until it is told to end, or the mount has gone, and nothing is under way.
    pub(super) fn run(mut self) {
        let mut woken = Vec::new();
        loop {
            if self.handle.pending.swap(false, Ordering::AcqRel) {
                self.commands();
            }
            let open = self.ending.is_none() && !self.shared.gone.load(Ordering::Acquire);
            let room = self.engine.held() < MEMORY;
            let takes = open && room && !self.paused;
            let received = if takes { self.receive_all(MEMORY) } else { Received::Dry };
            let done = self.engine.work();
            self.tell_admitted();
            self.see_closed();
            let came = self.engine.uring.as_mut().is_some_and(Uring::submit) && takes;
            if self.engine.len() == 0
                && let Some(pausing) = self.pausing.take()
            {
                // Who asked may have stopped waiting.
                let _ = pausing.send(());
            }
            if received == Received::Gone {
                self.shared.gone.store(true, Ordering::Release);
                self.shared.handles().iter().for_each(|other| other.waker.wake());
            }
            let open = open && received != Received::Gone;
            if !open && self.is_over() {
                return;
            }
            if received == Received::Some || done > 0 || came {
                continue;
            }
            woken.clear();
            if let Err(error) = self.watch(takes).and_then(|()| self.sleep(takes, &mut woken)) {
                tracing::error!("cannot wait for requests to nodes: {error}");
                return;
            }
            self.look |= woken.iter().any(|woken| woken.key == FUSE);
        }
    }

    fn is_over(&self) -> bool {
        self.engine.len() == 0 || self.ending.is_some_and(|at| self.engine.channel.now() >= at)
    }

    fn watch(&mut self, wanted: bool) -> io::Result<()> {
        if wanted != self.watching {
            match wanted {
                // Of the workers that sleep one is enough for a request.
                true => self.engine.channel.watch_shared(self.engine.fuse(), FUSE)?,
                false => self.engine.channel.unwatch(self.engine.fuse())?,
            }
            self.watching = wanted;
        }
        Ok(())
    }

    /// Looks for news a few times before it sleeps: whoever waits for an answer asks again at once.
    fn sleep(&mut self, takes: bool, woken: &mut Vec<Woken>) -> io::Result<()> {
        let idle = self.engine.len() == 0;
        for _ in 0..if idle && takes { LINGER } else { 0 } {
            std::thread::yield_now();
            self.engine.channel.wait(Some(Duration::ZERO), woken)?;
            let came = takes && self.engine.uring.as_mut().is_some_and(|uring| uring.has_come());
            if came || !woken.is_empty() || self.handle.pending.load(Ordering::Acquire) {
                return Ok(());
            }
        }
        let timeout = match self.ending {
            Some(at) => Some(Duration::from_nanos(at.since(self.engine.channel.now()))),
            None => (idle && self.engine.is_warm()).then_some(WARM),
        };
        self.engine.channel.wait(timeout, woken)?;
        if idle && timeout.is_some() && woken.is_empty() && !self.handle.pending.load(Ordering::Acquire) {
            self.engine.trim();
        }
        Ok(())
    }

    fn commands(&mut self) {
        let commands = std::mem::take(&mut *self.handle.lock());
        for command in commands {
            match command {
                Command::Register => self.register(),
                Command::Admit(slot) => self.engine.admit(slot),
                Command::Reap(answer) => {
                    self.look = true;
                    let _ = self.engine.uring.as_mut().is_some_and(Uring::submit);
                    while !self.paused && self.receive_all(usize::MAX) == Received::Some {
                        self.engine.work();
                    }
                    // Who asked may have stopped waiting.
                    let _ = answer.send(());
                }
                Command::Pause(done) => (self.paused, self.pausing) = (true, Some(done)),
                Command::Resume => (self.paused, self.pausing) = (false, None),
                Command::End(at) => self.ending = Some(at),
            }
        }
    }

    /// Begins the writes that have waited for one that ended here, wherever they are.
    fn tell_admitted(&mut self) {
        while let Some((worker, slot)) = self.engine.admitted.pop() {
            if worker == self.number {
                self.engine.admit(slot);
                // It may have ended, and let others in.
                self.engine.work();
            } else if let Some(other) = self.shared.handles().get(worker) {
                other.tell(Command::Admit(slot));
            }
        }
    }

    fn see_closed(&mut self) {
        let closed = self.shared.closed.load(Ordering::Acquire);
        if closed != self.closed {
            self.closed = closed;
            self.engine.let_go_of_closed();
        }
    }

    /// From now on requests come by the ring.
    fn register(&mut self) {
        let Some(uring) = &mut self.engine.uring else { return };
        uring.register();
        self.ring = true;
        if let Err(error) = self.engine.channel.watch(uring.fd(), RING, true, false) {
            tracing::error!("cannot wait for requests by io_uring: {error}");
        }
    }

    /// Takes in some of the requests that there are, and none beyond so many bytes of data under way.
    fn receive_all(&mut self, memory: usize) -> Received {
        let mut more = false;
        if self.ring {
            for _ in 0..BATCH {
                if self.engine.held() >= memory {
                    return Received::Dry;
                }
                let came = self.engine.uring.as_mut().and_then(Uring::next);
                more = came.is_some();
                let Some(came) = came else { break };
                self.take_ring(&came);
            }
            if self.engine.uring.as_ref().is_some_and(Uring::is_refused) {
                self.shared.by_ring.store(false, Ordering::Release);
            }
            // Little comes by the descriptor then, and a look costs a system call.
            if !std::mem::take(&mut self.look) && self.shared.by_ring.load(Ordering::Acquire) {
                return if more { Received::Some } else { Received::Dry };
            }
        }
        match self.receive(BATCH, memory) {
            Received::Dry if more => Received::Some,
            received => {
                self.look |= received == Received::Some;
                received
            }
        }
    }

    /// Serves a request that has come by the ring.
    fn take_ring(&mut self, came: &Came) {
        let Came { entry, header, payload } = came;
        let tag = Tag { unique: header.unique, entry: Some(*entry) };
        let Some(uring) = &self.engine.uring else { return };
        // Names are the only payload that is looked at here; longer ones than there are find nothing.
        let mut body = [0; 512];
        let from = match header.opcode {
            op::LOOKUP => &uring.payload(*entry)[..*payload],
            _ => uring.operation(*entry),
        };
        let len = from.len().min(body.len());
        body[..len].copy_from_slice(&from[..len]);
        let result = match parse(header, &body[..len]) {
            Some(Request::Write(write)) => {
                let mut staging = self.staging.take().expect("it is back after each request");
                let result = self.write(tag, header, &write, *payload, &mut staging);
                self.staging = Some(staging);
                result
            }
            Some(request) => self.serve(tag, header, &request),
            None => Err(Errno::EINVAL),
        };
        if let Err(error) = result {
            self.engine.fail(tag, error);
        }
    }

    /// Takes in at most `most` requests from the descriptor, and none beyond so many bytes of data under way.
    fn receive(&mut self, most: usize, memory: usize) -> Received {
        for _ in 0..most {
            if self.engine.held() >= memory {
                return Received::Dry;
            }
            let mut staging = self.staging.take().expect("it is back after each request");
            let received = rustix::io::read(self.engine.fuse(), &mut staging[DATA_AT - HEAD..RECEIVE_LEN]);
            if let Ok(len) = received {
                self.take(&mut staging, len);
            }
            self.staging = Some(staging);
            match received {
                Ok(_) => {}
                // A request that was taken back before it could be read.
                Err(rustix::io::Errno::INTR | rustix::io::Errno::NOENT) => {}
                Err(rustix::io::Errno::AGAIN) => return Received::Dry,
                Err(rustix::io::Errno::NODEV) => return Received::Gone,
                Err(error) => {
                    tracing::error!("requests to nodes cannot be received: {error}");
                    return Received::Gone;
                }
            }
        }
        Received::Some
    }

    /// Serves the request of `len` bytes that was received.
    fn take(&mut self, staging: &mut AlignedBuf, len: usize) {
        let received = &staging[DATA_AT - HEAD..][..len];
        let Ok((header, body)) = InHeader::read_from_prefix(received) else { return };
        let tag = Tag { unique: header.unique, entry: None };
        let result = match parse(&header, body) {
            Some(Request::Write(write)) => {
                let data = body.len().saturating_sub(HEAD - size_of::<InHeader>());
                self.write(tag, &header, &write, data, staging)
            }
            Some(request) => self.serve(tag, &header, &request),
            None => Err(Errno::EINVAL),
        };
        if let Err(error) = result {
            self.engine.fail(tag, error);
        }
    }

    fn serve(&mut self, tag: Tag, header: &InHeader, request: &Request<'_>) -> Result<(), Errno> {
        let ino = header.nodeid;
        let tree = &self.shared.tree;
        match request {
            Request::Init(init, more) => return self.init(tag, init, *more),
            Request::Lookup(name) => {
                let entry = entry(tree.lookup(ino, name)?);
                self.engine.answer(tag, entry.as_bytes());
            }
            Request::Forget(forgets) => forgets.as_slice().iter().for_each(|f| tree.forget(f.nodeid, f.nlookup)),
            Request::Getattr => self.engine.answer(tag, attr_out(tree.attr(ino)?).as_bytes()),
            Request::Setattr(set) => {
                let attr = tree.attr(ino)?;
                check_setattr(set, &attr)?;
                self.engine.answer(tag, attr_out(attr).as_bytes());
            }
            Request::Readlink => match tree.inode(ino)? {
                Inode::Link(target) => self.engine.answer(tag, target.as_os_str().as_bytes()),
                _ => return Err(Errno::EINVAL),
            },
            Request::Open(open) => return self.open(tag, &tree.file(ino)?, open),
            Request::Release(release) => {
                if let Ok(node) = tree.file(ino)
                    && tree.release(&node, release.fh)
                {
                    self.shared.closed.fetch_add(1, Ordering::AcqRel);
                    self.shared.handles().iter().filter(|h| !Arc::ptr_eq(h, &self.handle)).for_each(|h| h.waker.wake());
                }
                self.engine.answer(tag, &[]);
            }
            Request::Read(read) => return self.read(tag, &tree.file(ino)?, read),
            Request::Fsync => {
                let node = tree.file(ino)?;
                let shape = self.engine.shape(&node);
                self.engine.flush(tag, &node, shape);
            }
            Request::Fallocate(fallocate) => return self.fallocate(tag, &tree.file(ino)?, fallocate),
            Request::Lseek(LseekIn { offset, whence, .. }) => {
                let node = tree.file(ino)?;
                let hole = match *whence as i32 {
                    libc::SEEK_DATA => false,
                    libc::SEEK_HOLE => true,
                    _ => return Err(Errno::EINVAL),
                };
                let offset = seek(&self.engine.channel, &*node.device.device(), *offset, hole)?;
                self.engine.answer(tag, LseekOut { offset }.as_bytes());
            }
            Request::Statfs => self.engine.answer(tag, STATFS.as_bytes()),
            Request::Opendir => {
                let out = OpenOut { fh: 0, open_flags: 0, backing_id: 0 };
                self.engine.answer(tag, out.as_bytes());
            }
            Request::Readdir(read) => {
                let entries = directory(tree, ino, read);
                self.engine.answer(tag, &entries);
            }
            Request::Releasedir | Request::Destroy => self.engine.answer(tag, &[]),
            Request::Interrupt => {}
            Request::Change => return Err(Errno::EPERM),
            // What is answered so is not asked again.
            Request::Unknown | Request::Write(_) => return Err(Errno::ENOSYS),
        }
        Ok(())
    }

    fn init(&mut self, tag: Tag, asked: &InitIn, more: u32) -> Result<(), Errno> {
        if asked.major != MAJOR || asked.minor < MINOR_LEAST {
            tracing::error!(
                "the kernel speaks version {}.{} of FUSE: expected {MAJOR}.{MINOR_LEAST} or later, of Linux 4.20",
                asked.major,
                asked.minor
            );
            return Err(Errno::EPROTO);
        }
        let by_ring = u64::from(more) << 32 & init::OVER_IO_URING != 0 && self.shared.has_rings();
        let wanted = init::ASYNC_READ
            | init::BIG_WRITES
            | init::ASYNC_DIO
            | init::PARALLEL_DIROPS
            | init::MAX_PAGES
            | init::INIT_EXT
            | init::DIRECT_IO_ALLOW_MMAP
            | if by_ring { init::OVER_IO_URING } else { 0 };
        // Those of the first word are offered; what the second has is unknown here, and ignored where it is not known.
        let first = wanted as u32 & asked.flags;
        let extended = u64::from(first) & init::INIT_EXT != 0;
        let out = InitOut {
            major: MAJOR,
            minor: MINOR.min(asked.minor),
            max_readahead: 0,
            flags: first,
            max_background: MAX_BACKGROUND,
            congestion_threshold: MAX_BACKGROUND / 4 * 3,
            max_write: MAX_TRANSFER as u32,
            time_gran: 1,
            max_pages: MAX_PAGES,
            map_alignment: 0,
            flags2: if extended { (wanted >> 32) as u32 } else { 0 },
            unused: [0; 7],
        };
        self.engine.answer(tag, out.as_bytes());
        if by_ring {
            // Until all have done so the kernel keeps requests.
            self.shared.by_ring.store(true, Ordering::Release);
            self.shared.handles().iter().for_each(|handle| handle.tell(Command::Register));
        }
        Ok(())
    }

    fn open(&mut self, tag: Tag, node: &Arc<Node>, open: &OpenIn) -> Result<(), Errno> {
        let writes = open.flags & libc::O_ACCMODE as u32 != libc::O_RDONLY as u32;
        if writes && node.device.read_only() {
            return Err(Errno::EROFS);
        }
        let fh = self.shared.tree.open(node)?;
        let out = OpenOut { fh, open_flags: fopen::DIRECT_IO | fopen::PARALLEL_DIRECT_WRITES, backing_id: 0 };
        self.engine.answer(tag, out.as_bytes());
        Ok(())
    }

    fn read(&mut self, tag: Tag, node: &Arc<Node>, read: &ReadIn) -> Result<(), Errno> {
        let shape = self.engine.shape(node);
        let len = u64::from(read.size).min(shape.size.saturating_sub(read.offset));
        if read.size as usize > MAX_TRANSFER {
            return Err(Errno::EINVAL);
        }
        if len == 0 {
            self.engine.answer(tag, &[]);
            return Ok(());
        }
        let (range, skip) = steps::covering(read.offset, len, shape.block);
        self.engine.read(tag, node, shape, range, skip, len as usize)
    }

    fn write(
        &mut self,
        tag: Tag,
        header: &InHeader,
        write: &WriteIn,
        received: usize,
        staging: &mut AlignedBuf,
    ) -> Result<(), Errno> {
        let node = self.shared.tree.file(header.nodeid)?;
        if write.size as usize > received || received > MAX_TRANSFER {
            return Err(Errno::EIO);
        }
        let shape = self.engine.shape(&node);
        let len = u64::from(write.size).min(shape.size.saturating_sub(write.offset));
        if len == 0 {
            return Err(if write.size == 0 { Errno::EINVAL } else { Errno::ENOSPC });
        }
        // O_SYNC has the bit of O_DSYNC, too.
        let sync = write.flags & libc::O_DSYNC as u32 != 0;
        let flags = if sync && shape.fua { OpFlags::FUA } else { OpFlags::NONE };
        let mut steps = steps::write(write.offset, len, shape.block, flags);
        if sync && !shape.fua {
            // The last on a stack.
            steps.1.insert(0, steps::Step::Flush);
        }
        self.engine.write(tag, &node, shape, steps, staging, len as usize);
        Ok(())
    }

    /// As a block device does it (`blkdev_fallocate`, `block/fops.c`, 6.12).
    fn fallocate(&mut self, tag: Tag, node: &Arc<Node>, asked: &FallocateIn) -> Result<(), Errno> {
        let FallocateIn { offset, length, mode, .. } = *asked;
        let free = match mode {
            m if m == PUNCH_HOLE | KEEP_SIZE => true,
            m if m & !KEEP_SIZE == ZERO_RANGE => false,
            _ => return Err(Errno::EOPNOTSUPP),
        };
        let shape = self.engine.shape(node);
        if node.device.read_only() {
            return Err(Errno::EROFS);
        }
        let end = offset.checked_add(length).ok_or(Errno::EINVAL)?;
        if offset >= shape.size || length == 0 || end > shape.size && mode & KEEP_SIZE == 0 {
            return Err(Errno::EINVAL);
        }
        let length = end.min(shape.size) - offset;
        let steps = steps::zero(offset, length, shape.block, free, shape.discards);
        self.engine.change(tag, node, shape, steps);
        Ok(())
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        if self.watching {
            // Closing it does the same, when its clones are closed as well.
            let _ = self.engine.channel.unwatch(self.engine.fuse());
        }
        if let Some(uring) = self.engine.uring.take() {
            let mut remains = self.shared.remains.lock().unwrap_or_else(PoisonError::into_inner);
            remains.push(uring.close());
        }
        if self.shared.running.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.shared.tree.close_all();
        }
        self.engine.let_go_of_closed();
    }
}

/// The unit of what can be given back, which a loop device takes over.
const STATFS: StatfsOut = StatfsOut {
    blocks: 0,
    bfree: 0,
    bavail: 0,
    files: 0,
    ffree: 0,
    bsize: 4096,
    namelen: 255,
    frsize: 4096,
    pad: 0,
    spare: [0; 6],
};

fn entry(attr: Attr) -> EntryOut {
    EntryOut {
        nodeid: attr.ino,
        generation: 0,
        entry_valid: 0,
        attr_valid: 0,
        entry_valid_nsec: 0,
        attr_valid_nsec: 0,
        attr,
    }
}

fn attr_out(attr: Attr) -> AttrOut {
    AttrOut { attr_valid: 0, attr_valid_nsec: 0, dummy: 0, attr }
}

/// A device's size is not changed by its node, but who opens it with O_TRUNC means no harm: a block device ignores
/// that. Times are ignored.
fn check_setattr(set: &SetattrIn, attr: &Attr) -> Result<(), Errno> {
    let sets = |bit| set.valid & bit != 0;
    let truncates = set.size == 0 && !sets(fattr::FH);
    if sets(fattr::SIZE) && set.size != attr.size && !truncates {
        return Err(Errno::EINVAL);
    }
    let mode = sets(fattr::MODE) && set.mode & 0o7777 != attr.mode & 0o7777;
    if mode || sets(fattr::UID) && set.uid != attr.uid || sets(fattr::GID) && set.gid != attr.gid {
        return Err(Errno::EPERM);
    }
    Ok(())
}

fn directory(tree: &Tree, ino: u64, read: &ReadIn) -> Vec<u8> {
    let most = (read.size as usize).min(MAX_TRANSFER);
    let mut out = Vec::new();
    for (number, kind, name) in tree.entries(ino, read.offset) {
        // Names have at most 255 bytes.
        let dirent = Dirent { ino: number, off: number, namelen: name.len() as u32, kind: kind >> 12 };
        let len = (size_of::<Dirent>() + name.len()).next_multiple_of(8);
        if out.len() + len > most {
            break;
        }
        let end = out.len() + len;
        out.extend_from_slice(dirent.as_bytes());
        out.extend_from_slice(name.as_bytes());
        out.resize(end, 0);
    }
    out
}
