//! A copier, and the jobs that it could not take yet: they go before all that are asked for later.

use super::shared::{Origin, lock};
use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex};
use udm_io::{Cx, Domain};
use udm_kcopyd::{CopyJob, CopyOptions, CopyStats, Hurry, Kcopyd};

pub(super) struct Line {
    copier: Kcopyd,
    waiting: Mutex<VecDeque<Box<CopyJob>>>,
}

impl Line {
    pub(super) fn new(domain: &Domain, pool: usize) -> io::Result<Self> {
        let copier = Kcopyd::new(domain, CopyOptions { pool, ..CopyOptions::default() })?;
        Ok(Self { copier, waiting: Mutex::default() })
    }

    /// Asks for copies, for `asker`.
    pub(super) fn ask(&self, cx: &Cx<'_>, jobs: impl IntoIterator<Item = Box<CopyJob>>, asker: &Arc<Origin>) {
        let mut waiting = lock(&self.waiting);
        waiting.extend(jobs);
        if waiting.is_empty() {
            return;
        }
        while let Some(job) = waiting.pop_front() {
            if let Err(job) = self.copier.add(job, asker.clone()) {
                waiting.push_front(job);
                break;
            }
        }
        drop(waiting);
        self.copier.run(cx);
    }

    /// Asks again for what could not be taken.
    pub(super) fn go_on(&self, cx: &Cx<'_>, asker: &Arc<Origin>) {
        self.ask(cx, [], asker);
    }

    /// Whether neighbours may be asked for as one.
    pub(super) fn merges(&self) -> bool {
        self.copier.merges()
    }

    pub(super) fn set_throttle(&self, percent: u32) {
        self.copier.set_throttle(percent);
    }

    /// No throttle as long as it lives.
    pub(super) fn hurry(&self) -> Hurry {
        self.copier.hurry()
    }

    pub(super) fn stats(&self) -> CopyStats {
        self.copier.stats()
    }
}

/// A suspension's hurry: it is not to wait for what the throttle holds back.
#[derive(Default)]
pub(super) struct Hurrying(Mutex<Option<Hurry>>);

impl Hurrying {
    pub(super) fn begin(&self, origin: &Origin) {
        let hurry = origin.copies.hurry();
        *lock(&self.0) = Some(hurry);
    }

    pub(super) fn end(&self) {
        let hurry = lock(&self.0).take();
        drop(hurry);
    }
}
