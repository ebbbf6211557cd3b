//! The copier as its users see it.

use crate::job::{Copied, CopyJob, CopyOptions, CopyStats};
use crate::run::Inner;
use crate::workqueue::{Work, WorkItem, Workqueue};
use std::io;
use std::sync::Arc;
use udm_io::{Cx, Domain, InternalWaiter, Nanos};

/// A copier with a pool and a queue of its own. Clones are the same one; one is held until all jobs are done.
#[derive(Clone)]
pub struct Kcopyd(Arc<Inner>);

impl Kcopyd {
    /// A copier for channels of `domain`. The domain may override `options` for all copiers
    /// ([`copy_as`](Self::copy_as)). Takes address space for its pool, and memory as it is used. Fails when there is
    /// none, or the domain's workqueue cannot be started. May block briefly.
    pub fn new(domain: &Domain, options: CopyOptions) -> io::Result<Self> {
        let others = *Workqueue::of(domain).copies();
        let inner = Arc::new(Inner::new(others.unwrap_or(options))?);
        let weak = Arc::downgrade(&inner);
        inner.keep(WorkItem::new(domain, weak)?);
        Ok(Self(inner))
    }

    /// Makes every copier that is created in `domain` from now on use `options`, whatever its creator asks for: to
    /// compare policies.
    pub fn copy_as(domain: &Domain, options: CopyOptions) {
        *Workqueue::of(domain).copies() = Some(options);
    }

    /// Requests a copy. Returned when the queue is full; a caller without waiting jobs never sees that, and others try
    /// again when one of their jobs is done.
    pub fn copy(&self, cx: &Cx<'_>, job: Box<CopyJob>, asker: Arc<dyn Copied>) -> Result<(), Box<CopyJob>> {
        self.add_for_run(job, asker).map_err(|(job, _)| job)?;
        self.0.run(cx);
        Ok(())
    }

    /// As [`copy`](Self::copy), but does not start it: jobs that are added one after the other and started together by
    /// [`run`](Self::run) can be joined.
    pub fn add(&self, job: Box<CopyJob>, asker: Arc<dyn Copied>) -> Result<(), (Box<CopyJob>, Arc<dyn Copied>)> {
        self.0.add(job, asker)?;
        self.0.kick();
        Ok(())
    }

    /// As [`add`](Self::add), by a caller that calls [`run`](Self::run) before it leaves its section: the workqueue is
    /// told only if something is left after that.
    pub fn add_for_run(
        &self,
        job: Box<CopyJob>,
        asker: Arc<dyn Copied>,
    ) -> Result<(), (Box<CopyJob>, Arc<dyn Copied>)> {
        self.0.add(job, asker)
    }

    /// Starts the jobs that can be started.
    pub fn run(&self, cx: &Cx<'_>) {
        self.0.run(cx);
    }

    /// The share of the time, in percent, in which copies may be out; 100 at first. 0 counts as 1. Has no effect while
    /// there is a [`unthrottle`](Self::unthrottle).
    pub fn set_throttle(&self, percent: u32) {
        self.0.set_throttle(percent);
    }

    /// Disables the throttle as long as the returned value lives, for code that waits for copies. Blocks briefly.
    pub fn unthrottle(&self) -> Unthrottled {
        self.0.unthrottle();
        Unthrottled(self.0.clone())
    }

    /// Whether neighbouring jobs are joined: then a caller may as well request them as one.
    pub fn merges(&self) -> bool {
        self.0.options().merge
    }

    /// Statistics of the copier.
    pub fn stats(&self) -> CopyStats {
        self.0.stats()
    }

    /// Whether no job waits or is under way.
    pub fn is_idle(&self) -> bool {
        self.stats().outstanding == 0
    }
}

/// Disables the throttle as long as it lives; from [`Kcopyd::unthrottle`].
pub struct Unthrottled(Arc<Inner>);

impl Drop for Unthrottled {
    fn drop(&mut self) {
        self.0.rethrottle();
    }
}

impl Work for Inner {
    fn do_work(self: Arc<Self>, cx: &Cx<'_>) -> Option<Nanos> {
        self.run(cx);
        self.next_attention(cx.now())
    }
}

impl InternalWaiter for Inner {
    fn again(self: Arc<Self>, cx: &Cx<'_>) {
        self.run(cx);
    }
}
