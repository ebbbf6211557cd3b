//! A thread that serves one queue: what the driver gives its slots becomes bios, and what they came to goes back.
//!
//! # Invariants
//! - A slot's buffer is the bio's memory, without a copy. It is the device's from the request to its answer, and stays
//!   until the thread ends, which it does not before its last bio is back.
//! - A slot has one request at a time; it is answered once.
//! - Who ends for another server to go on answers everything it has begun, in one go, and takes nothing after that. At
//!   least one slot is then the driver's: by a slot that is, it learns that nobody serves any more.

use super::port::Port;
use super::uapi::{ABORT, IoDescriptor, op};
use crate::worker::{Rest, Rested, Serve, Turn, mailbox};
use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use udm_base::{AlignedBuf, Sector, Sectors};
use udm_io::{Attached, BlockDevice, Channel, Domain, Nanos, Op, OpFlags, Status, Woken};

/// The key of the ring's descriptor.
const RING: u64 = 0;
/// How often a thread looks for requests before it sleeps: whoever waits for an answer asks again at once.
const LINGER: u32 = 8;
/// How long memory is kept after the last request.
const WARM: Duration = Duration::from_secs(1);

/// The side of a thread that others see.
pub(super) type Handle = mailbox::Handle<Infallible>;

/// What a queue is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    pub(super) depth: u16,
    /// Bytes of a request at most.
    pub(super) buffer: usize,
}

impl Shape {
    /// Bytes of a queue's memory.
    pub(super) fn bytes(self) -> usize {
        usize::from(self.depth) * self.buffer
    }
}

pub(super) struct Worker<P> {
    port: P,
    channel: Channel,
    device: Attached,
    shape: Shape,
    /// Freed by others, after the thread has ended: until then the driver may write to it on the thread's way out of
    /// any system call.
    memory: Arc<AlignedBuf>,
    /// Bytes of the requests that slots have, to be answered when it goes well.
    lengths: Box<[u32]>,
    /// Writes are to be durable when they are answered.
    through: Arc<AtomicBool>,
    handle: Arc<Handle>,
    reaped: Vec<(u16, i32)>,
    /// Slots with a request.
    busy: usize,
    /// Slots that the driver has taken back for good.
    gone: usize,
    queued: bool,
    /// Answers that wait for all others, to be given together.
    held: Vec<(u16, i32)>,
    paused: bool,
    leaving: bool,
    /// Something of the memory was used since it was given back.
    warm: bool,
}

impl<P: Port> Worker<P> {
    /// A worker for the calling thread. The driver may give it requests from now on.
    /// `memory` is freed after the thread has ended.
    pub(super) fn new(
        domain: &Domain,
        device: Arc<dyn BlockDevice>,
        port: P,
        shape: Shape,
        memory: Arc<AlignedBuf>,
        through: Arc<AtomicBool>,
    ) -> io::Result<Self> {
        assert!(memory.len() >= shape.bytes(), "a buffer for each slot");
        let channel = domain.channel()?;
        let device = channel.attach(device);
        channel.set_depth(shape.depth.into());
        let handle = Arc::new(Handle::new(&channel, ()));
        let slots = usize::from(shape.depth);
        let mut worker = Self {
            port,
            channel,
            device,
            shape,
            memory,
            through,
            lengths: vec![0; slots].into(),
            handle,
            reaped: Vec::with_capacity(slots),
            busy: 0,
            gone: 0,
            queued: false,
            held: Vec::with_capacity(slots),
            paused: false,
            leaving: false,
            warm: false,
        };
        worker.channel.watch(worker.port.fd(), RING, true, false)?;
        for tag in 0..shape.depth {
            worker.push(tag, None);
        }
        worker.port.submit()?;
        worker.queued = false;
        Ok(worker)
    }

    fn buffer(&self, tag: u16) -> *mut u8 {
        self.memory.as_ptr().wrapping_add(usize::from(tag) * self.shape.buffer)
    }

    fn push(&mut self, tag: u16, result: Option<i32>) {
        let buffer = self.buffer(tag);
        // SAFETY: the memory is freed after the thread, and a slot's part of it is nobody else's while the driver has
        // the slot.
        unsafe { self.port.push(tag, result, buffer) };
        self.queued = true;
    }

    fn is_over(&self) -> bool {
        self.gone == self.lengths.len() || self.leaving && self.busy == self.held.len()
    }

    /// Takes, completes and answers what there is. Returns how much that was.
    #[inline]
    fn work(&mut self) -> usize {
        let mut moved = if self.paused { 0 } else { self.take() };
        if self.channel.outstanding() > 0 {
            moved += self.channel.poll();
        }
        while let Some(done) = self.channel.completed() {
            moved += 1;
            let tag = done.token as u16;
            let result = answer(done.status, self.lengths[usize::from(tag)]);
            if self.paused {
                self.held.push((tag, result));
            } else {
                self.busy -= 1;
                self.push(tag, Some(result));
            }
        }
        if self.queued {
            self.queued = false;
            if let Err(error) = self.port.submit() {
                tracing::error!("answers of a ublk device are not taken: {error}");
            }
        }
        moved
    }

    fn take(&mut self) -> usize {
        let mut reaped = std::mem::take(&mut self.reaped);
        self.port.reap(&mut reaped);
        let count = reaped.len();
        for (tag, word) in reaped.drain(..) {
            match word {
                0 => self.start(tag),
                ABORT => self.gone += 1,
                // Ours are refused only for a mistake of ours, or when the device has ended meanwhile.
                error => {
                    tracing::error!("the ublk driver refuses slot {tag}: {}", io::Error::from_raw_os_error(-error));
                    self.gone += 1;
                }
            }
        }
        self.reaped = reaped;
        count
    }

    /// Begins the request that a slot was given.
    #[inline]
    fn start(&mut self, tag: u16) {
        let request = self.port.request(tag);
        match parse(&request, self.shape.buffer) {
            Ok(Parsed { op, mut flags, sector, sectors }) => {
                if op.is_write() && self.through.load(Ordering::Relaxed) {
                    flags = flags.with(OpFlags::FUA);
                }
                self.busy += 1;
                self.warm = true;
                let (device, token) = (self.device, u64::from(tag));
                let taken = if op.has_payload() {
                    let bytes = sectors.as_len();
                    self.lengths[usize::from(tag)] = bytes as u32;
                    let memory = (self.buffer(tag), bytes);
                    // SAFETY: the slot's memory, which the driver leaves alone until the answer, and which stays.
                    unsafe { self.channel.submit_at(device, op, flags, sector, memory, token) }
                } else {
                    self.lengths[usize::from(tag)] = 0;
                    self.channel.submit_range(device, op, flags, sector, sectors, token)
                };
                assert!(taken, "the channel has room for every slot");
            }
            Err(errno) => self.push(tag, Some(-errno)),
        }
    }

    /// Gives memory back that nobody has used for a while.
    fn trim(&mut self) {
        self.warm = false;
        if self.memory.len() > 1 << 20 {
            // SAFETY: no slot has a request, so that nothing in it counts; pages that are gone read as zeroes. The
            // driver finds pages by their addresses each time.
            let advised = unsafe {
                rustix::mm::madvise(self.memory.as_ptr().cast(), self.memory.len(), rustix::mm::Advice::LinuxDontNeed)
            };
            if let Err(error) = advised {
                tracing::debug!("memory of a ublk queue stays: {error}");
            }
        }
    }
}

impl<P: Port> Serve for Worker<P> {
    type Command = Infallible;
    type Status = ();
    const CLIENTS: &'static str = "requests to a ublk device";

    fn handle(&self) -> &Arc<Handle> {
        &self.handle
    }

    fn channel(&self) -> &Channel {
        &self.channel
    }

    fn command(&mut self, command: Infallible) {
        match command {}
    }

    /// It is over when the device is stopped, or it was told to end.
    #[inline]
    fn turn(&mut self) -> io::Result<Turn> {
        let moved = self.work();
        if self.is_over() {
            return Ok(Turn::Over);
        }
        if moved > 0 {
            return Ok(Turn::Again);
        }
        let idle = self.busy == 0 && !self.paused;
        let (linger, timeout) = (if idle { LINGER } else { 0 }, (idle && self.warm).then_some(WARM));
        Ok(Turn::Rest(Rest { more: false, linger, timeout }))
    }

    fn look(&mut self, _: &mut Vec<Woken>) -> io::Result<bool> {
        Ok(self.take() > 0)
    }

    fn rested(&mut self, rest: Rest, how: Rested, _: &[Woken]) {
        if how == Rested::InVain && rest.timeout.is_some() && self.take() == 0 && self.busy == 0 {
            self.trim();
        }
    }

    /// Takes nothing new; holds the answers to what has begun.
    fn pause(&mut self) {
        // What has come by now is served: so there is a slot to give back, if all of them have requests.
        self.take();
        if !std::mem::replace(&mut self.paused, true) {
            // What comes now lies there and would wake the thread again and again.
            let _ = self.channel.unwatch(self.port.fd());
        }
    }

    fn is_quiet(&self) -> bool {
        self.busy == self.held.len()
    }

    fn resume(&mut self) {
        if std::mem::replace(&mut self.paused, false)
            && let Err(error) = self.channel.watch(self.port.fd(), RING, true, false)
        {
            tracing::error!("requests to a ublk device are not heard of: {error}");
        }
        for (tag, result) in std::mem::take(&mut self.held) {
            self.busy -= 1;
            self.push(tag, Some(result));
        }
    }

    /// After a pause. It waits for everything that has begun, however long that takes.
    fn end(&mut self, _: Nanos) {
        self.leaving = true;
    }

    /// Gives the answers that were held back.
    fn finish(&mut self) {
        for (tag, result) in std::mem::take(&mut self.held) {
            self.push(tag, Some(result));
        }
        if let Err(error) = self.port.submit() {
            // The driver gives these requests to the next server.
            tracing::warn!("the last answers of a ublk queue are not taken: {error}");
        }
    }
}

struct Parsed {
    op: Op,
    flags: OpFlags,
    sector: Sector,
    sectors: Sectors,
}

/// What a request is as a bio, or the error number for one that is none.
#[inline]
fn parse(request: &IoDescriptor, buffer: usize) -> Result<Parsed, i32> {
    let IoDescriptor { op_flags, nr_sectors, start_sector, .. } = *request;
    let durable = if op_flags & op::FUA != 0 { OpFlags::FUA } else { OpFlags::NONE };
    let (op, flags) = match op_flags as u8 {
        op::READ => (Op::Read, OpFlags::NONE),
        op::WRITE => (Op::Write, durable),
        op::FLUSH => {
            let (sector, sectors) = (Sector::ZERO, Sectors::ZERO);
            return Ok(Parsed { op: Op::Flush, flags: OpFlags::NONE, sector, sectors });
        }
        op::DISCARD => (Op::Discard, OpFlags::NONE),
        op::WRITE_ZEROES if op_flags & op::NOUNMAP != 0 => (Op::WriteZeroes, durable.with(OpFlags::NO_UNMAP)),
        op::WRITE_ZEROES => (Op::WriteZeroes, durable),
        _ => return Err(libc::EOPNOTSUPP),
    };
    // Where the device ends is its own to say; here only what could not be counted in bytes.
    if start_sector >= 1 << 54 || nr_sectors == 0 || op.has_payload() && u64::from(nr_sectors) * 512 > buffer as u64 {
        return Err(libc::EINVAL);
    }
    Ok(Parsed { op, flags, sector: Sector::new(start_sector), sectors: Sectors::new(nr_sectors.into()) })
}

/// How a request ended, as the driver wants to hear it. Errors that it has no word for, or that mean something else to
/// it (EAGAIN: come again without waiting; ENODEV: no more requests), are EIO.
#[inline]
fn answer(status: Status, bytes: u32) -> i32 {
    match status {
        // Below 2^31: a buffer is.
        Status::Ok => bytes as i32,
        Status::NoSpace => -libc::ENOSPC,
        Status::NotSupported => -libc::EOPNOTSUPP,
        Status::TimedOut => -libc::ETIMEDOUT,
        _ => -libc::EIO,
    }
}

#[cfg(test)]
mod tests;
