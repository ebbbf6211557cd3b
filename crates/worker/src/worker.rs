//! A worker, and how threads run it.

use crate::flights::{Drains, Epoch, Flights, Ticket};
use crate::inbox::{Events, Inbox, Runner, Running, Task, pause};
use crate::lock;
use crate::outbox::Outbox;
use std::future::Future;
use std::io;
use std::ops::{ControlFlow, Deref};
use std::sync::atomic::{AtomicBool, AtomicIsize, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::task::{Context, Waker};
use udm_io::{Cx, Domain, InternalWaiter, Nanos};
use udm_kcopyd::{CopyOptions, Kcopyd};
use udm_kcopyd::{Work, WorkItem};

/// How long the worker's I/O may be out before the workqueue serves it.
const PATIENCE_NS: u64 = 10_000_000;
/// How often one section polls the worker at most: other threads may leave more again and again, and a thread that
/// waits for sections waits for this one.
const POLLS: usize = 512;
/// How long the workqueue looks at a worker without a kick after the worker was busy.
const LINGER_NS: u64 = 1_000_000_000;

/// The purpose of a worker, and the state that it shares with other threads: settings, caches, devices.
pub trait Service: Send + Sync + Sized + 'static {
    /// The events of the worker.
    type Event: Send + 'static;
    /// Its name in errors: `pool`.
    const NAME: &'static str;

    /// Whether the worker waits for other clients' bios, besides those that it watches itself. Then the workqueue
    /// serves the channels that these may be out on. Must not block.
    fn waits_for_others(&self) -> bool {
        false
    }
}

/// Why a run of the worker was interrupted.
enum Break {
    /// This channel has no more internal bios for the outbox.
    Channel,
    /// There is more to do, for another section.
    Section,
}

/// A worker, with its shared state.
pub struct Worker<S: Service> {
    shared: S,
    this: Weak<Self>,
    domain: Domain,
    pub(crate) flights: Flights,
    drains: Mutex<Drains>,
    /// A drain is wanted. Written under the lock of `drains`.
    draining: AtomicBool,
    pub(crate) inbox: Arc<Inbox<S::Event>>,
    pub(crate) outbox: Outbox<S::Event>,
    /// Operations of its own that are out, but for what the thread that runs it has counted since it began. Below zero
    /// when they are back before that is added.
    pub(crate) out: AtomicIsize,
    /// Clients' bios that come back to it: they may be out on any channel, and others may wait for them.
    pub(crate) watched: AtomicUsize,
    /// An operation has come back: a task may have waited for it.
    pub(crate) answered: AtomicBool,
    /// When the workqueue may stop looking and wait for a kick.
    linger: AtomicU64,
    /// When the workqueue is to look next; `u64::MAX`: only when it is kicked.
    attention: AtomicU64,
    /// The workqueue was kicked, and has not looked since. Set by the thread that runs the worker; taken back by the
    /// workqueue before it kicks the worker, so that the thread which it finds running it sees that.
    told: AtomicBool,
    stopped: AtomicBool,
    ended: AtomicBool,
    item: OnceLock<WorkItem>,
    pub(crate) copiers: Box<[Kcopyd]>,
    /// The thread that polls the worker has nothing else to do.
    patient: AtomicBool,
}

impl<S: Service> Deref for Worker<S> {
    type Target = S;
    fn deref(&self) -> &S {
        &self.shared
    }
}

impl<S: Service> Worker<S> {
    /// A worker that nobody runs yet: see [`start`](Self::start). It has a copier of its own for each of `copiers`, of
    /// which there may be 32.
    /// Fails when there is no address space for their pools. May block briefly.
    pub fn new(domain: &Domain, shared: S, copiers: &[CopyOptions]) -> io::Result<Arc<Self>> {
        assert!(copiers.len() <= u32::BITS as usize, "a bit for each copier");
        let copiers: Box<[_]> = copiers.iter().map(|o| Kcopyd::new(domain, *o)).collect::<io::Result<_>>()?;
        Ok(Arc::new_cyclic(|this| Self {
            shared,
            this: this.clone(),
            domain: domain.clone(),
            flights: Flights::new(),
            drains: Mutex::default(),
            draining: AtomicBool::new(false),
            inbox: Inbox::new(copiers.len()),
            outbox: Outbox::default(),
            out: AtomicIsize::new(0),
            watched: AtomicUsize::new(0),
            answered: AtomicBool::new(false),
            linger: AtomicU64::new(0),
            attention: AtomicU64::new(0),
            told: AtomicBool::new(false),
            stopped: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            item: OnceLock::new(),
            copiers,
            patient: AtomicBool::new(false),
        }))
    }

    /// Starts the worker with its future, which runs until it ends or the worker is [stopped](Self::stop), and adds the
    /// worker to the workqueue. The future may hold the worker: it is dropped at the end.
    ///
    /// It awaits what this crate gives it to await, and nothing else: nobody would poll it. Once, and before anybody
    /// leaves anything. Fails when the workqueue's thread cannot be started.
    pub fn start<F>(&self, work: impl FnOnce(Events<S::Event>) -> F) -> io::Result<()>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let main = Box::pin(work(Events::new(self.inbox.clone())));
        let mut held = self.inbox.run.kick().expect("nobody runs it yet");
        held.value().main = Some(main);
        held.put_off();
        let work: Weak<dyn Work> = self.this.clone();
        let item = WorkItem::new(&self.domain, work).inspect_err(|_| self.stop())?;
        let _ = self.item.set(item);
        Ok(())
    }

    /// Ends the worker at its current await, if it has not ended: its future is dropped, here or by the thread that
    /// polls it now. None of its internal bios may be out, and no bio may have been left for it.
    pub fn stop(&self) {
        self.stopped.store(true, Ordering::Release);
        let (mut held, mut ended) = (self.inbox.run.kick(), None);
        while let Some(mut running) = held {
            self.inbox.begin(&mut running);
            ended = ended.or_else(|| self.end(&mut running));
            held = running.unlock().err();
        }
        // Without the lock: this may hold the last reference to what is dropped here.
        drop(ended);
    }

    /// The domain whose channels run the worker.
    pub fn domain(&self) -> &Domain {
        &self.domain
    }

    /// The time.
    pub fn now(&self) -> Nanos {
        self.domain.clock().now()
    }

    /// Leaves an event for the worker, which sees it at the next kick. Does not block.
    pub fn leave(&self, event: S::Event) {
        self.inbox.leave(event);
    }

    /// Leaves an event for the worker, and kicks it. Does not block.
    pub fn post(&self, cx: &Cx<'_>, event: S::Event) {
        if !cx.can_submit_internal() {
            self.leave(event);
            return self.kick_from_elsewhere();
        }
        if let Some(held) = self.inbox.post(event) {
            self.drive(cx, held, true);
        }
    }

    /// Drops events that nobody will look at any more, because the worker has ended.
    pub fn forget(&self, what: impl Fn(&S::Event) -> bool) {
        self.inbox.forget(what);
    }

    /// Whether the worker has ended; then nothing is answered any more.
    pub fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    /// Enters a bio into the epoch. The bio looks up its destination after this, in this section; then it is
    /// [carried](Self::carry) there, or it [leaves](Self::leave_epoch).
    #[inline]
    pub fn enter(&self, cx: &Cx<'_>) -> Epoch {
        self.flights.enter(cx)
    }

    /// For a bio that has entered, and is back or goes nowhere.
    #[inline]
    pub fn leave_epoch(&self, cx: &Cx<'_>, epoch: Epoch) {
        if self.flights.leave(cx, epoch) {
            self.kick(cx);
        }
    }

    /// How many bios have entered and not left. Exact when no channel is inside.
    pub fn entered(&self) -> u64 {
        self.flights.count()
    }

    /// Requests a drain: the end of all bios that have entered until now. The state that they could have found must
    /// have been changed before.
    pub fn ask_drain(&self) -> Ticket {
        let mut drains = lock(&self.drains);
        self.draining.store(true, Ordering::Release);
        drains.ask()
    }

    /// Whether a requested drain is over.
    pub fn is_drained(&self, ticket: Ticket) -> bool {
        lock(&self.drains).is_over(ticket)
    }

    /// Requests a drain, and waits for it. To be called by the worker.
    pub async fn drain(&self) {
        let ticket = self.ask_drain();
        while !self.is_drained(ticket) {
            pause().await;
        }
    }

    /// Whether the thread that polls the worker has nothing else to do, so that the worker may do long work.
    pub fn is_patient(&self) -> bool {
        self.patient.load(Ordering::Relaxed)
    }

    /// Runs the worker, if no other thread does, until it has nothing more to do; the workqueue then looks after what
    /// the worker waits for. Never blocks. From within a run of the worker, by what it has sent, it costs next to
    /// nothing.
    #[inline]
    pub fn kick(&self, cx: &Cx<'_>) {
        if !cx.can_submit_internal() {
            return self.kick_from_elsewhere();
        }
        if let Some(held) = self.inbox.run.kick() {
            self.drive(cx, held, true);
        }
    }

    /// Kicks it from a channel that ends: its thread goes, and with it who would look after what is sent.
    #[cold]
    fn kick_from_elsewhere(&self) {
        self.inbox.run.want();
        self.kick_later();
    }

    /// As [`kick`](Self::kick), from a thread that has nothing else to do.
    pub(crate) fn kick_patiently(&self, cx: &Cx<'_>) {
        self.patiently(|| self.kick(cx));
    }

    fn patiently(&self, work: impl FnOnce()) {
        self.patient.store(true, Ordering::Relaxed);
        work();
        self.patient.store(false, Ordering::Relaxed);
    }

    /// Runs the worker, and lets go of it. `tells`: has the workqueue look after what the worker waits for then, unless
    /// it is about to anyway.
    fn drive(&self, cx: &Cx<'_>, mut held: Running<'_, S::Event>, tells: bool) {
        let (mut polls, mut tell) = (0, false);
        loop {
            let run = self.run(cx, &mut held, &mut polls);
            self.count_run(&mut held);
            if matches!(run, ControlFlow::Break(Break::Section)) {
                held.put_off();
                return self.item.get().into_iter().for_each(WorkItem::kick_now);
            }
            let waits = tells && (self.is_busy() || self.inbox.deadline().is_some());
            if waits && !self.told.load(Ordering::Relaxed) {
                self.told.store(true, Ordering::Relaxed);
                tell = true;
            }
            if run.is_break() {
                held.put_off();
                break;
            }
            match held.unlock() {
                Ok(()) => break,
                Err(kicked) => held = kicked,
            }
        }
        if tell {
            self.kick_later();
        }
    }

    /// At the end of a run: adds what was counted in it.
    fn count_run(&self, held: &mut Running<'_, S::Event>) {
        let out = std::mem::take(&mut held.near().out);
        if out != 0 {
            self.out.fetch_add(out, Ordering::AcqRel);
        }
        self.inbox.note(held);
    }

    /// Polls the worker until nothing is left for it, or it has been polled often enough for one section: `polls` times
    /// until now.
    fn run(&self, cx: &Cx<'_>, held: &mut Running<'_, S::Event>, polls: &mut usize) -> ControlFlow<Break> {
        while *polls < POLLS {
            *polls += 1;
            self.inbox.begin(held);
            if held.value().main.is_none() {
                self.inbox.retire(held);
                return ControlFlow::Continue(());
            }
            if self.stopped.load(Ordering::Acquire) || !self.poll(held) {
                self.end(held);
                return ControlFlow::Continue(());
            }
            if !self.send_all(cx, held) {
                return ControlFlow::Break(Break::Channel);
            }
            if !self.advance_drains(cx) && !held.is_kicked() {
                return ControlFlow::Continue(());
            }
        }
        ControlFlow::Break(Break::Section)
    }

    /// Takes out what is polled: the worker has ended.
    fn end(&self, held: &mut Running<'_, S::Event>) -> Option<impl Sized + use<S>> {
        let ended = held.value().end();
        self.ended.store(true, Ordering::Release);
        self.inbox.retire(held);
        ended
    }

    /// Advances drains. Returns whether one has ended.
    fn advance_drains(&self, cx: &Cx<'_>) -> bool {
        self.draining.load(Ordering::Acquire) && {
            let mut drains = lock(&self.drains);
            let ended = drains.advance(&self.flights, &self.domain, cx);
            self.draining.store(drains.is_waiting(), Ordering::Release);
            ended
        }
    }

    /// Polls once. False when the worker has ended.
    fn poll(&self, held: &mut Running<'_, S::Event>) -> bool {
        // Looked at first: what is not seen here is told by a kick that has not been taken.
        let answered = self.answered.load(Ordering::Relaxed) && self.answered.swap(false, Ordering::AcqRel);
        let answered = std::mem::take(&mut held.near().answered) || answered;
        let runner = held.value();
        if answered {
            runner.tasks.retain_mut(|task| !self.poll_task(task));
        }
        let cx = &mut Context::from_waker(Waker::noop());
        runner.main.as_mut().is_some_and(|main| main.as_mut().poll(cx).is_pending())
    }

    /// Polls a task once. Whether it is done.
    fn poll_task(&self, task: &mut Task<S::Event>) -> bool {
        let polled = task.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        polled.map(|event| self.leave(event)).is_ready()
    }

    /// Begins a task: its end is an event.
    pub(crate) fn begin_task(&self, runner: &mut Runner<S::Event>, mut task: Task<S::Event>) {
        if self.poll_task(&mut task) {
            self.inbox.run.want();
        } else {
            runner.tasks.push(task);
        }
    }

    /// Whether an operation or bio is out that the worker, or a drain, waits for.
    fn is_busy(&self) -> bool {
        self.out.load(Ordering::Acquire) != 0 || Work::waits_for_others(self)
    }

    pub(crate) fn kick_later(&self) {
        self.item.get().into_iter().for_each(WorkItem::kick);
    }

    /// This worker, as a reference to hold.
    pub(crate) fn arc(&self) -> Arc<Self> {
        self.this.upgrade().expect("whoever calls holds it")
    }

    /// The `at`-th of its copiers. For copies of the worker itself, use [`copy`](Self::copy).
    pub fn copier(&self, at: usize) -> &Kcopyd {
        &self.copiers[at]
    }

    /// Its work under way, for people.
    pub fn inspect(&self) -> Vec<(&'static str, String)> {
        let count = |n: Option<usize>| n.map_or_else(|| "locked".to_owned(), |n| n.to_string());
        // Without trying its lock: a thread that kicks the worker meanwhile would believe that it runs.
        let is_wanted = self.inbox.run.is_kicked();
        let drains = self.drains.try_lock().map_or("locked", |d| if d.is_waiting() { "waited for" } else { "none" });
        let deadline = match self.inbox.deadline() {
            None => "none".to_owned(),
            Some(at) => format!("in {} ms", at.since(self.now()) / 1_000_000),
        };
        vec![
            ("worker", if is_wanted { "wanted".into() } else { "idle".into() }),
            ("inbox", count(self.inbox.len())),
            ("outbox", self.inbox.unsent().to_string()),
            ("own operations out", self.out.load(Ordering::Acquire).to_string()),
            ("bios on detours", self.watched.load(Ordering::Acquire).to_string()),
            ("bios in flight", self.entered().to_string()),
            ("drains", drains.into()),
            ("deadline", deadline),
        ]
    }
}

impl<S: Service> Drop for Worker<S> {
    fn drop(&mut self) {
        // What is polled may hold the inbox, which holds it.
        if let Some(mut held) = self.inbox.run.kick() {
            let ended = held.value().end();
            held.put_off();
            drop(ended);
        }
    }
}

impl<S: Service> InternalWaiter for Worker<S> {
    fn again(self: Arc<Self>, cx: &Cx<'_>) {
        self.kick(cx);
    }
}

impl<S: Service> Work for Worker<S> {
    fn do_work(self: Arc<Self>, cx: &Cx<'_>) -> Option<Nanos> {
        // The thread that runs it now, or next, kicks the workqueue if that has to look again.
        self.told.store(false, Ordering::Relaxed);
        if !cx.can_submit_internal() {
            self.inbox.run.want();
        } else if let Some(held) = self.inbox.run.kick() {
            // Not told: see below.
            self.patiently(|| self.drive(cx, held, false));
        }
        let now = cx.now();
        let busy = self.is_busy();
        // Before its time: another thread has kicked it, and will do so again.
        if busy || now.0 < self.attention.load(Ordering::Relaxed) {
            self.linger.store(now.after(LINGER_NS).0, Ordering::Relaxed);
        }
        let lingers = busy || now.0 < self.linger.load(Ordering::Relaxed);
        let soon = now.after(PATIENCE_NS);
        let deadline = self.inbox.deadline().map(|at| at.max(soon));
        let next = lingers.then_some(soon).or(deadline);
        self.attention.store(next.map_or(u64::MAX, |at| at.0), Ordering::Relaxed);
        next
    }

    fn waits_for_others(&self) -> bool {
        let watches = self.watched.load(Ordering::Acquire) > 0;
        watches || self.shared.waits_for_others() || self.draining.load(Ordering::Acquire)
    }
}
