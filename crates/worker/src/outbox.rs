//! What a worker wants sent, and how it learns of it: the worker has no channel of its own, but the thread that polls
//! it has.

use crate::lock;
use crate::worker::{Runner, Service, Worker};
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use udm_base::{AlignedBuf, Sector, Sectors};
use udm_io::{Bio, BlockDevice, Cx, InternalIo, InternalIoOwner, IoBuffer, IoMemory, Op, OpFlags, Status};
use udm_kcopyd::{Copied, CopyJob};
use udm_pdata::Block;

/// What is to be sent.
pub(crate) enum Outgoing<S: Service> {
    /// A client's bio, to the device that it points at.
    Bio(Bio),
    /// A client's bio, in a later section.
    Again(Bio),
    /// An operation of the worker's own.
    InternalIo(Box<InternalIo<Load<S::Event>>>),
    /// A copy, by one of its copiers, and who is told.
    Copy(usize, Box<CopyJob>, Arc<dyn Copied>),
    /// Something to be done beside the worker.
    Task(Pin<Box<dyn Future<Output = S::Event> + Send>>),
}

/// The memory of an operation of the worker's own.
pub enum Memory {
    /// There is none: flushes, discards, zeroes.
    None,
    /// A metadata block.
    Block(Box<Block>),
    /// Some sectors.
    Buffer(AlignedBuf),
}

/// The memory, and who waits for it.
pub(crate) struct Load<E> {
    memory: Memory,
    to: Destination<E>,
}

enum Destination<E> {
    /// It is awaited.
    Slot(Arc<Slot>),
    /// An event, made of a job's number.
    Event(fn(u64, Status) -> E, u64),
}

impl<E: 'static> IoMemory for Load<E> {
    fn buffer(&mut self) -> IoBuffer<'_> {
        match &mut self.memory {
            Memory::None => IoBuffer::None,
            Memory::Block(block) => IoBuffer::In(&mut block.0),
            Memory::Buffer(buffer) => IoBuffer::In(buffer),
        }
    }
}

/// Where an awaited operation leaves its result.
#[derive(Default)]
struct Slot(Mutex<Option<(Status, Memory)>>);

/// An operation that is under way. It goes on when this is dropped.
pub struct Awaited(Arc<Slot>);

impl Future for Awaited {
    type Output = (Status, Memory);
    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Self::Output> {
        lock(&self.0.0).take().map_or(Poll::Pending, Poll::Ready)
    }
}

/// An operation on a device: what, how, where.
pub struct Operation {
    /// The device. The worker's service holds it too, so that the last hold is not let go of inside a channel.
    pub dev: Arc<dyn BlockDevice>,
    /// What is asked for.
    pub op: Op,
    /// How.
    pub flags: OpFlags,
    /// Where, and how much. Memory has at least as much.
    pub range: (Sector, Sectors),
}

impl Operation {
    /// An operation with nothing special about it.
    pub fn new(dev: &Arc<dyn BlockDevice>, op: Op, range: (Sector, Sectors)) -> Self {
        Self { dev: dev.clone(), op, flags: OpFlags::NONE, range }
    }

    /// A flush.
    pub fn flush(dev: &Arc<dyn BlockDevice>) -> Self {
        Self::new(dev, Op::Flush, (Sector::ZERO, Sectors::ZERO))
    }

    fn io<E: 'static>(self, load: Load<E>) -> Box<InternalIo<Load<E>>> {
        let mut io = InternalIo::new(self.dev, load);
        io.op = self.op;
        io.flags = self.flags;
        (io.sector, io.sectors) = self.range;
        io
    }
}

/// A service whose worker copies.
pub trait Copies: Service {
    /// What the worker is left when a job is done, or has failed.
    fn copied(job: Box<CopyJob>) -> Self::Event;
}

impl<S: Service> Worker<S> {
    fn put(&self, outgoing: Outgoing<S>) {
        lock(&self.outbox).push_back(outgoing);
    }

    fn put_own(&self, outgoing: Outgoing<S>) {
        self.out.fetch_add(1, Ordering::AcqRel);
        self.put(outgoing);
    }

    /// Does an operation, which may be awaited.
    pub fn submit(&self, operation: Operation, memory: Memory) -> Awaited {
        let slot = Arc::new(Slot::default());
        let load = Load { memory, to: Destination::Slot(slot.clone()) };
        self.put_own(Outgoing::InternalIo(operation.io(load)));
        Awaited(slot)
    }

    /// Does an operation without memory; its end is an event, made of `job`.
    pub fn submit_for(&self, operation: Operation, job: u64, event: fn(u64, Status) -> S::Event) {
        let load = Load { memory: Memory::None, to: Destination::Event(event, job) };
        self.put_own(Outgoing::InternalIo(operation.io(load)));
    }

    /// Copies, by the `at`-th of its copiers; the end is an event. What is asked for between two pauses can go as one.
    pub fn copy(&self, at: usize, job: Box<CopyJob>)
    where
        S: Copies,
    {
        self.put_own(Outgoing::Copy(at, job, self.arc()));
    }

    /// Copies, likewise, and may be awaited.
    pub fn copy_and_wait(&self, at: usize, job: Box<CopyJob>) -> Awaited {
        let slot = Arc::new(Slot::default());
        let asker = AwaitedCopy { worker: self.arc(), slot: slot.clone() };
        self.put_own(Outgoing::Copy(at, job, Arc::new(asker)));
        Awaited(slot)
    }

    /// Has something done beside the worker, which may await operations; its end is an event.
    pub fn spawn(&self, task: impl Future<Output = S::Event> + Send + 'static) {
        self.put(Outgoing::Task(Box::pin(task)));
    }

    /// Sends a client's bio to the device that it points at: one that lies beneath that from which it came.
    pub fn forward(&self, bio: Bio) {
        self.put(Outgoing::Bio(bio));
    }

    /// Sends a client's bio to the device that it points at, in a later section, also on this channel. So one that
    /// comes back to where it was does not keep a thread waiting for ever that waits for sections.
    pub fn resubmit(&self, bio: Bio) {
        self.put(Outgoing::Again(bio));
    }

    /// Sends what is in the outbox. False when the channel has no more bios for it.
    pub(crate) fn send_all(&self, cx: &Cx<'_>, runner: &mut Runner<S::Event>) -> bool {
        let mut copies = false;
        let all = loop {
            let Some(next) = lock(&self.outbox).pop_front() else { break true };
            match next {
                Outgoing::Bio(bio) => cx.forward(bio),
                Outgoing::Again(bio) => bio.resubmit(),
                Outgoing::Task(task) => self.begin_task(runner, task),
                Outgoing::Copy(at, job, asker) => {
                    self.copies[at].add(job, asker);
                    copies = true;
                }
                Outgoing::InternalIo(io) => {
                    let me = self.arc();
                    let Err(io) = cx.submit_internal_io(io, me.clone()) else { continue };
                    let level = Cx::internal_level(&*io.dev);
                    lock(&self.outbox).push_front(Outgoing::InternalIo(io));
                    if !cx.when_internal(level, me) {
                        self.kick_later();
                    }
                    break false;
                }
            }
        };
        if copies {
            self.copies.iter().for_each(|queue| queue.begin(cx));
        }
        all
    }

    /// An operation of its own has come back.
    fn returned(&self, cx: &Cx<'_>) {
        self.out.fetch_sub(1, Ordering::AcqRel);
        self.kick(cx);
    }

    /// An operation that may be awaited has come back.
    fn answer(&self, slot: &Slot, done: (Status, Memory)) {
        *lock(&slot.0) = Some(done);
        self.answered.store(true, Ordering::Release);
    }

    fn copy_returned(&self, cx: &Cx<'_>) {
        self.returned(cx);
        // There may be room for what waits.
        self.copies.iter().for_each(|queue| queue.go_on(cx));
    }
}

impl<S: Copies> Copied for Worker<S> {
    fn copied(self: Arc<Self>, cx: &Cx<'_>, job: Box<CopyJob>) {
        self.leave(S::copied(job));
        self.copy_returned(cx);
    }
}

/// Where the end of an awaited copy is told.
struct AwaitedCopy<S: Service> {
    worker: Arc<Worker<S>>,
    slot: Arc<Slot>,
}

impl<S: Service> Copied for AwaitedCopy<S> {
    fn copied(self: Arc<Self>, cx: &Cx<'_>, job: Box<CopyJob>) {
        self.worker.answer(&self.slot, (job.status(), Memory::None));
        self.worker.copy_returned(cx);
    }
}

impl<S: Service> InternalIoOwner<Load<S::Event>> for Worker<S> {
    fn io_done(self: Arc<Self>, cx: &Cx<'_>, io: Box<InternalIo<Load<S::Event>>>, status: Status) {
        let InternalIo { memory: Load { memory, to }, .. } = *io;
        match to {
            Destination::Slot(slot) => self.answer(&slot, (status, memory)),
            Destination::Event(event, job) => self.leave(event(job, status)),
        }
        self.returned(cx);
    }
}
