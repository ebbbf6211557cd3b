//! What the worker wants sent, and how it learns of it: the worker has no channel of its own.

use super::pool::Pool;
use super::volume::Volume;
use super::worker::Event;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use udm_base::{Sector, Sectors};
use udm_io::{Bio, BlockDevice, Cx, InternalIo, InternalIoOwner, IoBuffer, IoMemory, Op, OpFlags, Status};
use udm_kcopyd::{Copied, CopyJob};
use udm_pdata::Block;

/// What is to be sent.
pub(super) enum Outgoing {
    /// A client's bio, to the device that it points at, which lies beneath its volume.
    Bio(Bio),
    /// A client's bio, to its volume, with what the worker has found for it.
    Again(Arc<Volume>, Bio),
    /// An operation of the worker's own.
    InternalIo(Box<InternalIo<Load>>),
    /// A copy, or zeroes.
    Copy(Box<CopyJob>),
}

/// The memory of an operation of the worker's own.
pub(super) enum Memory {
    /// There is none.
    None,
    /// A metadata block.
    Block(Box<Block>),
}

/// The memory, and who waits for it.
pub(super) struct Load {
    memory: Memory,
    to: Destination,
}

enum Destination {
    /// The worker awaits it.
    Slot(Arc<Slot>),
    /// A job of the worker's, which goes on with other things meanwhile.
    Job(u64),
}

impl IoMemory for Load {
    fn buffer(&mut self) -> IoBuffer<'_> {
        match &mut self.memory {
            Memory::None => IoBuffer::None,
            Memory::Block(block) => IoBuffer::In(&mut block.0),
        }
    }
}

/// Where an awaited operation leaves its result.
#[derive(Default)]
pub(super) struct Slot(Mutex<Option<(Status, Memory)>>);

impl Slot {
    fn lock(&self) -> std::sync::MutexGuard<'_, Option<(Status, Memory)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An operation that has been put into the outbox.
pub(super) struct Awaited(Arc<Slot>);

impl Future for Awaited {
    type Output = (Status, Memory);
    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Self::Output> {
        match self.0.lock().take() {
            Some(done) => Poll::Ready(done),
            None => Poll::Pending,
        }
    }
}

/// An operation: what, how, where.
pub(super) struct Operation {
    pub(super) dev: Arc<dyn BlockDevice>,
    pub(super) op: Op,
    pub(super) flags: OpFlags,
    pub(super) range: (Sector, Sectors),
}

impl Operation {
    pub(super) fn flush(dev: &Arc<dyn BlockDevice>) -> Self {
        Self { dev: dev.clone(), op: Op::Flush, flags: OpFlags::NONE, range: (Sector::ZERO, Sectors::ZERO) }
    }

    fn internal_io(self, load: Load) -> Box<InternalIo<Load>> {
        let mut io = InternalIo::new(self.dev, load);
        io.op = self.op;
        io.flags = self.flags;
        (io.sector, io.sectors) = self.range;
        io
    }
}

impl Pool {
    /// Does an operation; the result is awaited.
    pub(super) fn do_and_wait(&self, operation: Operation, memory: Memory) -> Awaited {
        let slot = Arc::new(Slot::default());
        let load = Load { memory, to: Destination::Slot(slot.clone()) };
        self.put(Outgoing::InternalIo(operation.internal_io(load)));
        Awaited(slot)
    }

    /// Does an operation without memory; its end is an event for `job`.
    pub(super) fn do_for(&self, operation: Operation, job: u64) {
        let load = Load { memory: Memory::None, to: Destination::Job(job) };
        self.put(Outgoing::InternalIo(operation.internal_io(load)));
    }
}

impl Copied for Pool {
    fn copied(self: Arc<Self>, cx: &Cx<'_>, job: Box<CopyJob>) {
        self.push(Event::Done(job.token, job.status()));
        self.returned();
        self.kick(cx);
    }
}

impl InternalIoOwner<Load> for Pool {
    fn io_done(self: Arc<Self>, cx: &Cx<'_>, io: Box<InternalIo<Load>>, status: Status) {
        let InternalIo { memory: Load { memory, to }, .. } = *io;
        match to {
            Destination::Slot(slot) => *slot.lock() = Some((status, memory)),
            Destination::Job(job) => self.push(Event::Done(job, status)),
        }
        self.returned();
        self.kick(cx);
    }
}
