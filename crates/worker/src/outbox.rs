//! How what a worker wants sent goes out, and comes back: the worker has no channel of its own, but the thread that
//! runs it has.

use crate::inbox::{Runner, Running};
use crate::outgoing::{Awaiting, Destination, Done, Load, Memory, Outgoing, SendOn};
use crate::slot::{Awaited, Filler, slot};
use crate::worker::{Service, Worker};
use crate::{lock, sync};
use std::collections::VecDeque;
use std::future::Future;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use udm_base::{Sector, Sectors};
use udm_io::{Bio, BlockDevice, Cx, InternalIo, InternalIoOwner, Op, OpFlags, Status};
use udm_kcopyd::{Copied, CopyJob, Kcopyd};

/// What threads want sent that do not run the worker.
pub(crate) struct Outbox<E: 'static> {
    beside: Mutex<VecDeque<Outgoing<E>>>,
    /// There is something in it. Written under its lock; whoever was kicked for it sees it.
    any: sync::AtomicBool,
}

impl<E: 'static> Default for Outbox<E> {
    fn default() -> Self {
        Self { beside: Mutex::default(), any: sync::AtomicBool::new(false) }
    }
}

/// An operation on a device: what, how, where.
pub struct Operation {
    /// The device. The worker's service holds it too, so that the last reference is not dropped inside a channel.
    pub dev: Arc<dyn BlockDevice>,
    /// What is asked for.
    pub op: Op,
    /// How.
    pub flags: OpFlags,
    /// The range. Memory is at least as long.
    pub range: (Sector, Sectors),
}

impl Operation {
    /// An operation without flags.
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
    /// The worker's event for a job that is done, or has failed.
    fn copied(job: Box<CopyJob>) -> Self::Event;
}

impl<S: Service> Worker<S> {
    fn put(&self, outgoing: Outgoing<S::Event>) {
        match self.inbox.run.near() {
            Some(mut near) => near.outgoing.push_back(outgoing),
            None => self.put_beside(outgoing),
        }
    }

    #[cold]
    fn put_beside(&self, outgoing: Outgoing<S::Event>) {
        let mut beside = lock(&self.outbox.beside);
        beside.push_back(outgoing);
        self.outbox.any.store(true, Ordering::Release);
    }

    fn put_own(&self, outgoing: Outgoing<S::Event>) {
        self.count_out(1);
        self.put(outgoing);
    }

    /// Counts operations of its own that go out, or come back.
    fn count_out(&self, change: isize) {
        match self.inbox.run.near() {
            Some(mut near) => near.out += change,
            None => _ = self.out.fetch_add(change, Ordering::AcqRel),
        }
    }

    /// Does an operation, which may be awaited.
    pub fn submit(&self, operation: Operation, memory: Memory) -> Awaited<Done> {
        let (filler, awaited) = slot();
        let load = Load { memory, to: Destination::Slot(filler) };
        self.put_own(Outgoing::InternalIo(operation.io(load)));
        awaited
    }

    /// Does an operation without memory; its end is an event, made of `job`.
    pub fn submit_for(&self, operation: Operation, job: u64, event: fn(u64, Status) -> S::Event) {
        let load = Load { memory: Memory::None, to: Destination::Event(event, job) };
        self.put_own(Outgoing::InternalIo(operation.io(load)));
    }

    /// Copies, by the `at`-th of its copiers; the end is an event. Copies requested between two pauses can be joined.
    pub fn copy(&self, at: usize, job: Box<CopyJob>)
    where
        S: Copies,
    {
        self.put_own(Outgoing::Copy(at, (job, self.arc())));
    }

    /// Copies, likewise, and may be awaited.
    pub fn copy_and_wait(&self, at: usize, job: Box<CopyJob>) -> Awaited<Done> {
        let (filler, awaited) = slot();
        let asker = AwaitedCopy { worker: self.arc(), filler: Mutex::new(Some(filler)) };
        self.put_own(Outgoing::Copy(at, (job, Arc::new(asker))));
        awaited
    }

    /// Runs a future beside the worker, which may await operations; its end is an event.
    pub fn spawn(&self, task: impl Future<Output = S::Event> + Send + 'static) {
        self.put(Outgoing::Task(Box::pin(task)));
    }

    /// Sends a client's bio to the device that it points at, which must lie beneath the one that it came from.
    pub fn forward(&self, bio: Bio) {
        self.put(Outgoing::Bio(bio));
    }

    /// Sends a client's bio back to `to`, which sends it on. What that cannot send on at once, and a bio of another
    /// channel than the worker runs in, is submitted in a later section to the device that it points at. So a bio that
    /// comes back to where it was does not keep a thread waiting for ever that waits for sections.
    pub fn send_back(&self, bio: Bio, to: Arc<dyn SendOn>) {
        self.put(Outgoing::Back(bio, to));
    }

    /// What is to be sent next: into `runner.sending`. Whether there is anything.
    fn take_outgoing(&self, held: &mut Running<'_, S::Event>) -> bool {
        let mut sending = std::mem::take(&mut held.value().sending);
        std::mem::swap(&mut sending, &mut held.near().outgoing);
        if self.outbox.any.load(Ordering::Acquire) {
            let mut beside = lock(&self.outbox.beside);
            sending.append(&mut beside);
            self.outbox.any.store(false, Ordering::Release);
        }
        let any = !sending.is_empty();
        held.value().sending = sending;
        any
    }

    /// Sends the entries of the outbox. False when the channel has no more internal bios.
    pub(crate) fn send_all(&self, cx: &Cx<'_>, held: &mut Running<'_, S::Event>) -> bool {
        let mut asked = self.copy_waiting(held.value());
        let mut all = true;
        while all && self.take_outgoing(held) {
            while let Some(next) = held.value().sending.pop_front() {
                match next {
                    Outgoing::Bio(bio) => cx.forward(bio),
                    Outgoing::Back(bio, to) if cx.is_home(&bio) => {
                        to.send_on(cx, bio).into_iter().for_each(Bio::resubmit)
                    }
                    Outgoing::Back(bio, _) => bio.resubmit(),
                    Outgoing::Task(task) => self.begin_task(held.value(), task),
                    Outgoing::Copy(at, job) => {
                        self.add_copy(held.value(), at, job);
                        asked |= 1 << at;
                    }
                    Outgoing::InternalIo(io) => {
                        if let Err(io) = cx.submit_internal_io(io, self.arc()) {
                            self.send_later(cx, held, io);
                            all = false;
                            break;
                        }
                    }
                }
            }
        }
        // Together, so that neighbours can go as one.
        if asked != 0 {
            let asked = |(at, _): &(usize, _)| asked & 1 << at != 0;
            self.copiers.iter().enumerate().filter(asked).for_each(|(_, copier)| copier.run(cx));
        }
        all
    }

    /// Puts back what cannot be sent, because the channel has no bio for the first of it.
    #[cold]
    fn send_later(&self, cx: &Cx<'_>, held: &mut Running<'_, S::Event>, first: Box<InternalIo<Load<S::Event>>>) {
        let level = Cx::internal_level(&*first.dev);
        let mut rest = std::mem::take(&mut held.value().sending);
        rest.push_front(Outgoing::InternalIo(first));
        {
            let mut near = held.near();
            rest.append(&mut near.outgoing);
            near.outgoing = rest;
        }
        if !cx.when_internal(level, self.arc()) {
            self.kick_later();
        }
    }

    /// Asks for a copy, unless others wait for its copier already.
    fn add_copy(&self, runner: &mut Runner<S::Event>, at: usize, job: Awaiting) {
        runner.copies[at].push_back(job);
        add_waiting(&self.copiers[at], &mut runner.copies[at]);
    }

    /// Asks for copies that could not be taken before. Of which copiers, a bit each.
    fn copy_waiting(&self, runner: &mut Runner<S::Event>) -> u32 {
        let mut asked = 0;
        for (at, waiting) in runner.copies.iter_mut().enumerate().filter(|(_, waiting)| !waiting.is_empty()) {
            asked |= 1 << at;
            add_waiting(&self.copiers[at], waiting);
        }
        asked
    }

    /// An operation of its own has come back.
    fn returned(&self, cx: &Cx<'_>) {
        self.count_out(-1);
        self.kick(cx);
    }

    /// An operation that may be awaited has come back.
    fn answer(&self, filler: Filler<Done>, done: Done) {
        filler.fill(done);
        match self.inbox.run.near() {
            Some(mut near) => near.answered = true,
            None => self.answered.store(true, Ordering::Release),
        }
    }
}

/// Has a copier take what waits for it, as far as it can.
fn add_waiting(copier: &Kcopyd, waiting: &mut VecDeque<Awaiting>) {
    while let Some((job, asker)) = waiting.pop_front() {
        if let Err(back) = copier.add_for_run(job, asker) {
            return waiting.push_front(back);
        }
    }
}

impl<S: Copies> Copied for Worker<S> {
    fn copied(self: Arc<Self>, cx: &Cx<'_>, job: Box<CopyJob>) {
        self.leave(S::copied(job));
        self.returned(cx);
    }
}

/// The receiver of an awaited copy's result.
struct AwaitedCopy<S: Service> {
    worker: Arc<Worker<S>>,
    /// Until then.
    filler: Mutex<Option<Filler<Done>>>,
}

impl<S: Service> Copied for AwaitedCopy<S> {
    fn copied(self: Arc<Self>, cx: &Cx<'_>, job: Box<CopyJob>) {
        if let Some(filler) = lock(&self.filler).take() {
            self.worker.answer(filler, (job.status(), Memory::None));
            self.worker.returned(cx);
        }
    }
}

impl<S: Service> InternalIoOwner<Load<S::Event>> for Worker<S> {
    fn io_done(self: Arc<Self>, cx: &Cx<'_>, io: Box<InternalIo<Load<S::Event>>>, status: Status) {
        let InternalIo { memory: Load { memory, to }, .. } = *io;
        match to {
            Destination::Slot(filler) => self.answer(filler, (status, memory)),
            Destination::Event(event, job) => self.leave(event(job, status)),
        }
        self.returned(cx);
    }
}
