//! The workers of one server.

use super::deadline::{Answers, Deadline, REAP};
use super::mailbox::{Handle, Order};
use super::{Serve, run};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, mpsc};
use std::time::Duration;
use udm_io::{Domain, Joiner};

/// Workers that start and end together. Each may know the others by it.
pub(crate) struct Workers<C, S = ()> {
    domain: Domain,
    /// Set once, before the first of them serves.
    handles: OnceLock<Vec<Arc<Handle<C, S>>>>,
    joiners: Mutex<Vec<Joiner>>,
}

impl<C: Send + 'static, S: Send + Sync + 'static> Workers<C, S> {
    /// None yet.
    pub(crate) fn new(domain: &Domain) -> Self {
        Self { domain: domain.clone(), handles: OnceLock::new(), joiners: Mutex::default() }
    }

    /// Starts a thread for each of `makers`, which makes its worker there. None of them serves before all have been
    /// made. Blocks until then. Once at most.
    ///
    /// # Errors
    /// Of the first thread that cannot be started, or has no worker. The others end then: see [`join`](Self::join).
    pub(crate) fn start<W, M>(
        &self,
        name: impl Fn(usize) -> String,
        makers: impl IntoIterator<Item = M>,
    ) -> io::Result<()>
    where
        W: Serve<Command = C, Status = S>,
        M: FnOnce() -> io::Result<W> + Send + 'static,
    {
        let (mut joiners, mut starting) = (Vec::new(), Vec::new());
        let start = || {
            for (make, number) in makers.into_iter().zip(0..) {
                let (told, result) = mpsc::channel();
                let (begin, begun) = mpsc::channel::<()>();
                let work = move || match make() {
                    // Not begun when another could not be started.
                    Ok(worker) if told.send(Ok(worker.handle().clone())).is_ok() && begun.recv().is_ok() => run(worker),
                    Ok(_) => {}
                    Err(error) => drop(told.send(Err(error))),
                };
                joiners.push(self.domain.executor().spawn(&name(number), Box::new(work))?);
                starting.push((begin, result));
            }
            let died = |_| io::Error::other("a thread of a server ended at its start");
            starting.iter().map(|(_, result)| result.recv().map_err(died)?).collect::<io::Result<Vec<_>>>()
        };
        let handles = start();
        *self.joiners() = joiners;
        let _ = self.handles.set(handles?);
        for (begin, _) in starting {
            let _ = begin.send(());
        }
        Ok(())
    }

    fn joiners(&self) -> MutexGuard<'_, Vec<Joiner>> {
        self.joiners.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What they live in.
    pub(crate) fn domain(&self) -> &Domain {
        &self.domain
    }

    /// Their handles, by number; none before all have been made.
    pub(crate) fn handles(&self) -> &[Arc<Handle<C, S>>] {
        self.handles.get().map_or(&[], Vec::as_slice)
    }

    fn order(&self, order: impl Fn() -> Order<C>) {
        self.handles().iter().for_each(|handle| handle.order(order()));
    }

    /// Tells all of them something.
    pub(crate) fn tell(&self, command: impl Fn() -> C) {
        self.handles().iter().for_each(|handle| handle.tell(command()));
    }

    /// Asks all of them something. Those that have ended do not answer.
    pub(crate) fn ask<T>(&self, command: impl Fn(mpsc::Sender<T>) -> C) -> mpsc::Receiver<T> {
        let (answer, answers) = mpsc::channel();
        self.tell(|| command(answer.clone()));
        answers
    }

    /// Asks all of them to see to hang-ups, and blocks until they have, at most a second. Whether they have; one that
    /// has ended has nothing to see to.
    pub(crate) fn reap(&self, command: impl Fn(mpsc::Sender<()>) -> C) -> bool {
        let answers = self.ask(command);
        Deadline::after(self.domain.clock(), REAP).answers(&answers, self.handles().len()) != Answers::Late
    }

    /// Has all of them take nothing new, and blocks until nothing is under way; they go on if that is not so by then.
    pub(crate) fn pause(&self, patience: Duration) -> Answers {
        Self::pause_all([self], &Deadline::after(self.domain.clock(), patience))
    }

    /// The same for several, which all pause or all go on.
    pub(crate) fn pause_all<'a>(all: impl IntoIterator<Item = &'a Self> + Clone, deadline: &Deadline) -> Answers
    where
        Self: 'a,
    {
        let (asked, answers) = mpsc::channel();
        let mut count = 0;
        for workers in all.clone() {
            workers.order(|| Order::Pause(asked.clone()));
            count += workers.handles().len();
        }
        drop(asked);
        let quiet = deadline.answers(&answers, count);
        if quiet == Answers::Late {
            all.into_iter().for_each(Self::resume);
        }
        quiet
    }

    /// Has all of them go on after a pause.
    pub(crate) fn resume(&self) {
        self.order(|| Order::Resume);
    }

    /// Tells all of them to finish what is under way, and to end, by then. The answer is disconnected when all have
    /// heard.
    pub(crate) fn end(&self, deadline: &Deadline) -> mpsc::Receiver<()> {
        let (heard, all_heard) = mpsc::channel();
        self.order(|| Order::End(deadline.time(), heard.clone()));
        all_heard
    }

    /// Whether all of them have ended.
    pub(crate) fn have_ended(&self) -> bool {
        self.handles().iter().all(|handle| handle.mailbox.is_closed())
    }

    /// Blocks until all of them have ended. Further calls do nothing.
    pub(crate) fn join(&self) {
        let joiners = std::mem::take(&mut *self.joiners());
        joiners.into_iter().for_each(Joiner::join);
    }

    /// [Ends](Self::end) several at once, and blocks until they have ended: `patience` in all.
    pub(crate) fn shut_down<'a>(all: impl IntoIterator<Item = &'a Self>, patience: Duration)
    where
        Self: 'a,
    {
        let tell = |workers: &'a Self| {
            drop(workers.end(&Deadline::after(workers.domain.clock(), patience)));
            workers
        };
        // All are told before one is waited for.
        let all: Vec<_> = all.into_iter().map(tell).collect();
        all.into_iter().for_each(Self::join);
    }
}
