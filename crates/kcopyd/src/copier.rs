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
    /// A copier for channels of `domain`, which may have other `options` for all ([`copy_as`](Self::copy_as)). Takes
    /// address space for its pool, and memory as it is used. Fails when there is none, or the domain's workqueue cannot
    /// be started. May block briefly.
    pub fn new(domain: &Domain, options: CopyOptions) -> io::Result<Self> {
        let others = *Workqueue::of(domain).copies();
        let inner = Arc::new(Inner::new(others.unwrap_or(options))?);
        let weak = Arc::downgrade(&inner);
        inner.keep(WorkItem::new(domain, weak)?);
        Ok(Self(inner))
    }

    /// Has every copier that is made in `domain` from now on work by `options`, whatever its maker asks for: to measure
    /// one policy beside another.
    pub fn copy_as(domain: &Domain, options: CopyOptions) {
        *Workqueue::of(domain).copies() = Some(options);
    }

    /// Asks for a copy. Given back when as many jobs wait as may: who has none of its own waiting here never sees that;
    /// others ask again when one of theirs is done.
    pub fn copy(&self, cx: &Cx<'_>, job: Box<CopyJob>, asker: Arc<dyn Copied>) -> Result<(), Box<CopyJob>> {
        self.0.add(job, asker)?;
        self.0.run(cx);
        Ok(())
    }

    /// As [`copy`](Self::copy) without beginning yet: jobs that are added one after the other and begun together by
    /// [`run`](Self::run) can go as one.
    pub fn add(&self, job: Box<CopyJob>, asker: Arc<dyn Copied>) -> Result<(), Box<CopyJob>> {
        self.0.add(job, asker)
    }

    /// Begins what can be begun.
    pub fn run(&self, cx: &Cx<'_>) {
        self.0.run(cx);
    }

    /// The share of the time, in percent, in which copies may be out; 100 at first. 0 is taken for 1. Not while
    /// somebody is in a [`hurry`](Self::hurry).
    pub fn set_throttle(&self, percent: u32) {
        self.0.set_throttle(percent);
    }

    /// As long as what is returned lives, there is no throttle: for who waits until copies are done. Blocks briefly.
    pub fn hurry(&self) -> Hurry {
        self.0.hurry();
        Hurry(self.0.clone())
    }

    /// Whether jobs next to each other go together: then one may as well ask for them as one.
    pub fn merges(&self) -> bool {
        self.0.options().merge
    }

    /// What it did.
    pub fn stats(&self) -> CopyStats {
        self.0.stats()
    }

    /// Whether no job waits or is under way.
    pub fn is_idle(&self) -> bool {
        self.stats().outstanding == 0
    }
}

/// No throttle as long as it lives, from [`Kcopyd::hurry`].
pub struct Hurry(Arc<Inner>);

impl Drop for Hurry {
    fn drop(&mut self) {
        self.0.no_hurry();
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
