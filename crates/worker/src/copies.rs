//! A copier, and the jobs that it could not take yet: they go before all later ones.

use crate::lock;
use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex};
use udm_io::{Cx, Domain};
use udm_kcopyd::{Copied, CopyJob, CopyOptions, Kcopyd};

type Waiting = VecDeque<(Box<CopyJob>, Arc<dyn Copied>)>;

pub(crate) struct CopyQueue {
    pub(crate) copier: Kcopyd,
    waiting: Mutex<Waiting>,
}

impl CopyQueue {
    pub(crate) fn new(domain: &Domain, options: CopyOptions) -> io::Result<Self> {
        Ok(Self { copier: Kcopyd::new(domain, options)?, waiting: Mutex::default() })
    }

    /// Adds a copy for `asker`; [`begin`](Self::begin) starts it.
    pub(crate) fn add(&self, job: Box<CopyJob>, asker: Arc<dyn Copied>) {
        let mut waiting = lock(&self.waiting);
        waiting.push_back((job, asker));
        self.add_waiting(&mut waiting);
    }

    fn add_waiting(&self, waiting: &mut Waiting) {
        while let Some((job, asker)) = waiting.pop_front() {
            if let Err(job) = self.copier.add(job, asker.clone()) {
                waiting.push_front((job, asker));
                return;
            }
        }
    }

    /// Starts the copies that were added.
    pub(crate) fn begin(&self, cx: &Cx<'_>) {
        self.copier.run(cx);
    }

    /// Tries the jobs again that could not be taken.
    pub(crate) fn go_on(&self, cx: &Cx<'_>) {
        let mut waiting = lock(&self.waiting);
        if waiting.is_empty() {
            return;
        }
        self.add_waiting(&mut waiting);
        drop(waiting);
        self.begin(cx);
    }
}
