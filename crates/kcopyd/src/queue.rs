//! The queue of jobs, and which of them go together.

use crate::job::{CopyFrom, CopyJob, CopyOptions, Requeue};
use std::collections::VecDeque;
use std::sync::Arc;
use udm_base::{Sector, Sectors};
use udm_io::BlockDevice;

impl CopyJob {
    /// What is left to begin, at most one piece.
    pub(crate) fn next_len(&self) -> Sectors {
        (self.sectors - self.progress.begun).min(self.progress.most)
    }

    /// Whether `next` continues what ends `len` after this job's start, everywhere alike.
    fn goes_on_with(&self, next: &Self, len: Sectors) -> bool {
        let same =
            |a: &Arc<dyn BlockDevice>, b: &Arc<dyn BlockDevice>| std::ptr::addr_eq(Arc::as_ptr(a), Arc::as_ptr(b));
        let follows = |a: Sector, b: Sector| a.checked_add(len) == Some(b);
        let reads = match (&self.from, &next.from) {
            (CopyFrom::Device(a, at), CopyFrom::Device(b, then)) => same(a, b) && follows(*at, *then),
            (CopyFrom::Zeroes, CopyFrom::Zeroes) => true,
            _ => false,
        };
        let mut pairs = self.to.iter().zip(&next.to);
        reads
            && self.flags == next.flags
            && self.to.len() == next.to.len()
            && self.is_whole()
            && next.is_whole()
            && self.progress.write_out == next.progress.write_out
            && !next.progress.alone
            && pairs.all(|(a, b)| same(&a.dev, &b.dev) && follows(a.sector, b.sector))
    }
}

/// Jobs that wait, in order.
pub(crate) struct Queue {
    pub(crate) jobs: VecDeque<Box<CopyJob>>,
}

impl Queue {
    /// How many whole jobs, the first included, can go together, and how long they are: at most `most`. None together
    /// when the first is longer, or is to go by itself.
    pub(crate) fn together(&self, options: &CopyOptions, most: Sectors) -> Option<(usize, Sectors)> {
        let first = self.jobs.front()?;
        let most = most.min(first.progress.most);
        if !options.merge || first.progress.alone || first.sectors > most {
            return None;
        }
        let (mut count, mut len) = (1, first.sectors);
        while let Some(next) = self.jobs.get(count) {
            // Zeroes come last.
            let bare = self.jobs[count - 1].is_bare();
            if !bare || next.sectors > most - len || !first.goes_on_with(next, len) {
                break;
            }
            (count, len) = (count + 1, len + next.sectors);
        }
        Some((count, len))
    }

    /// The first job found too few pages.
    pub(crate) fn requeue(&mut self, options: &CopyOptions) {
        if options.requeue == Requeue::Tail
            && let Some(first) = self.jobs.pop_front()
        {
            self.jobs.push_back(first);
        }
    }
}
