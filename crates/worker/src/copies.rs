//! A copier, and the jobs that it could not take yet: they go before all that are asked for later.

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

    /// Asks for a copy, for `asker`; it is begun by [`begin`](Self::begin).
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

    /// Begins what has been asked for.
    pub(crate) fn begin(&self, cx: &Cx<'_>) {
        self.copier.run(cx);
    }

    /// Asks again for what could not be taken.
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
