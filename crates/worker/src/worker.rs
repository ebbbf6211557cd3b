//! A worker and those who run it.

use crate::copies::CopyQueue;
use crate::flights::{Drains, Epoch, Flights, Ticket};
use crate::inbox::{Events, Inbox, pause};
use crate::lock;
use crate::outbox::Outgoing;
use crate::sync;
use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::ops::{ControlFlow, Deref};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::task::{Context, Waker};
use udm_io::{Cx, Domain, InternalWaiter, Nanos};
use udm_kcopyd::{CopyOptions, Kcopyd};
use udm_kcopyd::{Work, WorkItem};

/// How long the worker's I/O may be out before the workqueue looks after it.
const PATIENCE_NS: u64 = 10_000_000;
/// How often one section polls the worker: others may leave more again and again, and a thread that waits for sections
/// waits for this one.
const POLLS: usize = 512;
/// How long a worker that was busy is looked at without being kicked.
const LINGER_NS: u64 = 1_000_000_000;

/// What a worker is for, and what it shares with those who ask it: settings, caches, devices.
pub trait Service: Send + Sync + Sized + 'static {
    /// What the worker is left.
    type Event: Send + 'static;
    /// What it is called in errors: `pool`.
    const NAME: &'static str;

    /// Whether the worker waits for bios of others, besides those that it watches itself. Then the workqueue serves the
    /// channels that they may be out on. Must not block.
    fn waits_for_others(&self) -> bool {
        false
    }
}

/// Why a run of the worker was broken off.
enum Break {
    /// This channel has no more bios for what is to be sent.
    Channel,
    /// There is more to do, for another section.
    Section,
}

type Task<E> = Pin<Box<dyn Future<Output = E> + Send>>;

/// What is polled.
pub(crate) struct Runner<E> {
    main: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    tasks: Vec<Task<E>>,
}

/// A worker, with what it shares.
pub struct Worker<S: Service> {
    shared: S,
    this: Weak<Self>,
    domain: Domain,
    pub(crate) flights: Flights,
    drains: Mutex<Drains>,
    /// A drain is waited for. Written under the lock of `drains`.
    draining: AtomicBool,
    inbox: Arc<Inbox<S::Event>>,
    pub(crate) outbox: Mutex<VecDeque<Outgoing<S>>>,
    runner: sync::Mutex<Runner<S::Event>>,
    /// Operations of its own that are out.
    pub(crate) out: AtomicUsize,
    /// Clients' bios that come back to it: on whatever channel they are out, others may wait for them.
    pub(crate) watched: AtomicUsize,
    /// An operation has come back: a task may have waited for it.
    pub(crate) answered: AtomicBool,
    /// When the workqueue may stop looking, and wait until it is kicked.
    linger: AtomicU64,
    /// When the workqueue is to look next; `u64::MAX` when it is kicked.
    attention: AtomicU64,
    stopped: AtomicBool,
    ended: AtomicBool,
    item: OnceLock<WorkItem>,
    pub(crate) copies: Box<[CopyQueue]>,
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
    /// A worker that nobody runs yet: see [`start`](Self::start). It has a copier of its own for each of `copiers`.
    /// Fails when there is no address space for their pools. May block briefly.
    pub fn new(domain: &Domain, shared: S, copiers: &[CopyOptions]) -> io::Result<Arc<Self>> {
        let copies = copiers.iter().map(|options| CopyQueue::new(domain, *options)).collect::<io::Result<_>>()?;
        Ok(Arc::new_cyclic(|this| Self {
            shared,
            this: this.clone(),
            domain: domain.clone(),
            flights: Flights::new(),
            drains: Mutex::default(),
            draining: AtomicBool::new(false),
            inbox: Inbox::new(),
            outbox: Mutex::default(),
            runner: sync::Mutex::new(Runner { main: None, tasks: Vec::new() }),
            out: AtomicUsize::new(0),
            watched: AtomicUsize::new(0),
            answered: AtomicBool::new(false),
            linger: AtomicU64::new(0),
            attention: AtomicU64::new(0),
            stopped: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            item: OnceLock::new(),
            copies,
            patient: AtomicBool::new(false),
        }))
    }

    /// Gives the worker what it does, until that ends or the worker is [stopped](Self::stop), and has the workqueue
    /// look after it. What it does may hold the worker: that is let go of at its end.
    ///
    /// It awaits what this crate gives it to await, and nothing else: nobody would poll it. Once. Fails when the
    /// workqueue's thread cannot be started.
    pub fn start<F>(&self, work: impl FnOnce(Events<S::Event>) -> F) -> io::Result<()>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let main = Box::pin(work(Events::new(self.inbox.clone())));
        self.runner.lock().expect("nobody runs it yet").main = Some(main);
        let work: Weak<dyn Work> = self.this.clone();
        let item = WorkItem::new(&self.domain, work).inspect_err(|_| self.stop())?;
        let _ = self.item.set(item);
        Ok(())
    }

    /// Ends the worker where it is, if it has not ended: what it holds is dropped, here or by the thread that polls it
    /// now. Nothing of its own may be out, and nobody may have left it a bio.
    pub fn stop(&self) {
        self.stopped.store(true, Ordering::Release);
        let mut ended = None;
        self.inbox.run(&self.runner, |runner| {
            self.inbox.begin();
            ended = runner.end();
            self.ended.store(true, Ordering::Release);
            ControlFlow::<()>::Continue(())
        });
        // Without the lock: it may be the last that holds what is about to be dropped.
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

    /// Leaves something for the worker, which sees it when somebody kicks it next. Does not block.
    pub fn leave(&self, event: S::Event) {
        self.inbox.leave(event);
    }

    /// Leaves something for the worker, and kicks it. Does not block.
    pub fn post(&self, cx: &Cx<'_>, event: S::Event) {
        self.leave(event);
        self.kick(cx);
    }

    /// Drops events that nobody will look at any more.
    pub fn forget(&self, what: impl Fn(&S::Event) -> bool) {
        self.inbox.forget(what);
    }

    /// Whether the worker has ended; then nothing is answered any more.
    pub fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    /// Counts a bio as being on its way, which looks up where it goes after this, in this section. It is
    /// [carried](Self::carry) there, or it [leaves](Self::leave_epoch).
    #[inline]
    pub fn enter(&self, cx: &Cx<'_>) -> Epoch {
        self.flights.enter(cx)
    }

    /// A bio that has entered is back, or goes nowhere.
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

    /// Asks for a drain: that everything that has entered until now leaves. What it could have found must have been
    /// changed before.
    pub fn ask_drain(&self) -> Ticket {
        let mut drains = lock(&self.drains);
        self.draining.store(true, Ordering::Release);
        drains.ask()
    }

    /// Whether a drain that was asked for is over.
    pub fn is_drained(&self, ticket: Ticket) -> bool {
        lock(&self.drains).is_over(ticket)
    }

    /// Asks for a drain, and waits for it. By the worker.
    pub async fn drain(&self) {
        let ticket = self.ask_drain();
        while !self.is_drained(ticket) {
            pause().await;
        }
    }

    /// Whether the thread that polls the worker has nothing else to do, so that the worker may go on with what takes
    /// long.
    pub fn is_patient(&self) -> bool {
        self.patient.load(Ordering::Relaxed)
    }

    /// Runs the worker, if nobody does, until it has nothing more to do, and has the workqueue look after what it waits
    /// for then. Never blocks.
    pub fn kick(&self, cx: &Cx<'_>) {
        if self.drive(cx) && (self.is_busy() || self.inbox.deadline().is_some()) {
            self.kick_later();
        }
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

    /// Runs the worker, if nobody does. Whether it did, and the workqueue does not go on with it at once.
    fn drive(&self, cx: &Cx<'_>) -> bool {
        if !cx.can_submit_internal() {
            // A channel that ends: its thread goes, and with it who would look after what is sent.
            self.inbox.want();
            self.kick_later();
            return false;
        }
        match self.inbox.run(&self.runner, |runner| self.run(cx, runner)) {
            None => false,
            Some(ControlFlow::Break(Break::Section)) => {
                self.item.get().into_iter().for_each(WorkItem::kick_now);
                false
            }
            Some(_) => true,
        }
    }

    /// Polls the worker until nothing is left for it, or it has been polled often enough for one section.
    fn run(&self, cx: &Cx<'_>, runner: &mut Runner<S::Event>) -> ControlFlow<Break> {
        for _ in 0..POLLS {
            self.inbox.begin();
            if runner.main.is_none() {
                return ControlFlow::Continue(());
            }
            if self.stopped.load(Ordering::Acquire) || !self.poll(runner) {
                runner.end();
                self.ended.store(true, Ordering::Release);
                return ControlFlow::Continue(());
            }
            if !self.send_all(cx, runner) {
                return ControlFlow::Break(Break::Channel);
            }
            if !self.advance_drains(cx) && !self.inbox.is_wanted() {
                return ControlFlow::Continue(());
            }
        }
        ControlFlow::Break(Break::Section)
    }

    /// Whether a drain has ended by it.
    fn advance_drains(&self, cx: &Cx<'_>) -> bool {
        self.draining.load(Ordering::Acquire) && {
            let mut drains = lock(&self.drains);
            let ended = drains.advance(&self.flights, &self.domain, cx);
            self.draining.store(drains.is_waiting(), Ordering::Release);
            ended
        }
    }

    /// Polls once. False when the worker has ended.
    fn poll(&self, runner: &mut Runner<S::Event>) -> bool {
        if !runner.tasks.is_empty() && self.answered.swap(false, Ordering::AcqRel) {
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
            self.inbox.want();
        } else {
            runner.tasks.push(task);
        }
    }

    /// Whether something is out that the worker, or a drain, waits for.
    fn is_busy(&self) -> bool {
        self.out.load(Ordering::Acquire) > 0 || Work::waits_for_others(self)
    }

    pub(crate) fn kick_later(&self) {
        self.item.get().into_iter().for_each(WorkItem::kick);
    }

    /// This worker, for what is to hold it.
    pub(crate) fn arc(&self) -> Arc<Self> {
        self.this.upgrade().expect("whoever calls holds it")
    }

    /// The `at`-th of its copiers. What it is to copy for the worker goes by way of [`copy`](Self::copy).
    pub fn copier(&self, at: usize) -> &Kcopyd {
        &self.copies[at].copier
    }

    /// What it has under way, for people.
    pub fn inspect(&self) -> Vec<(&'static str, String)> {
        let count = |n: Option<usize>| n.map_or_else(|| "locked".to_owned(), |n| n.to_string());
        // Not by trying its lock: a thread that kicks the worker meanwhile would believe that it runs.
        let is_wanted = self.inbox.is_wanted();
        let drains = self.drains.try_lock().map_or("locked", |d| if d.is_waiting() { "waited for" } else { "none" });
        let deadline = match self.inbox.deadline() {
            None => "none".to_owned(),
            Some(at) => format!("in {} ms", at.since(self.now()) / 1_000_000),
        };
        vec![
            ("worker", if is_wanted { "wanted".into() } else { "idle".into() }),
            ("inbox", count(self.inbox.len())),
            ("outbox", count(self.outbox.try_lock().ok().map(|outbox| outbox.len()))),
            ("own operations out", self.out.load(Ordering::Acquire).to_string()),
            ("bios on detours", self.watched.load(Ordering::Acquire).to_string()),
            ("bios in flight", self.entered().to_string()),
            ("drains", drains.into()),
            ("deadline", deadline),
        ]
    }
}

impl<E> Runner<E> {
    /// Takes out what is polled.
    fn end(&mut self) -> Option<Self> {
        let main = self.main.take();
        main.is_some().then(|| Self { main, tasks: std::mem::take(&mut self.tasks) })
    }
}

impl<S: Service> InternalWaiter for Worker<S> {
    fn again(self: Arc<Self>, cx: &Cx<'_>) {
        self.kick(cx);
    }
}

impl<S: Service> Work for Worker<S> {
    fn do_work(self: Arc<Self>, cx: &Cx<'_>) -> Option<Nanos> {
        // Without a kick: the workqueue is told below.
        self.patiently(|| _ = self.drive(cx));
        let now = cx.now();
        let busy = self.is_busy();
        // Before its time: somebody has kicked it, and will again.
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
