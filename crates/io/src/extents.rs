//! What ranges of a device hold, and how a device says so. Questions are in `questions`.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use udm_base::Sectors;

/// What a range of a device holds, for those who copy only what counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ExtentKind {
    /// Allocated, or not known.
    Data,
    /// Allocated, and reads as zeroes.
    Zero,
    /// Not allocated, and reads as zeroes.
    Hole,
}

/// A run of sectors of one kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extent {
    /// How long it is.
    pub sectors: Sectors,
    /// What it holds.
    pub kind: ExtentKind,
}

/// The number of a question, which no other of the same asker has.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Question(pub(crate) u64);

#[derive(Default)]
pub(crate) struct Answered {
    pub(crate) answers: VecDeque<(Question, Vec<Extent>)>,
    /// Replies that devices have.
    pub(crate) out: usize,
    /// What is being asked: the asker looks for answers afterwards, and need not be woken.
    pub(crate) asking: Option<Question>,
}

pub(crate) struct Inbox {
    pub(crate) answered: Mutex<Answered>,
    pub(crate) wake: Box<dyn Fn() + Send + Sync>,
}

impl Inbox {
    pub(crate) fn lock(&self) -> MutexGuard<'_, Answered> {
        self.answered.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Where the answer to a question is left. Dropped, it answers that all is data.
pub struct ExtentsReply {
    /// `None` once it is answered.
    pub(crate) inbox: Option<Arc<Inbox>>,
    pub(crate) question: Question,
    pub(crate) most: Sectors,
}

impl ExtentsReply {
    /// Of the answer no more than so many sectors count: for a device that passes a part of a question on.
    #[must_use]
    pub fn within(mut self, sectors: Sectors) -> Self {
        self.most = self.most.min(sectors);
        self
    }

    /// Answers with runs from the first sector asked for on, in order. They may stop short of the range; what goes past
    /// it is cut off. None at all is no knowledge. May be called on any thread, and takes no lock that I/O is done
    /// under.
    pub fn give(mut self, mut extents: Vec<Extent>) {
        let mut left = self.most;
        extents.retain_mut(|extent| {
            extent.sectors = extent.sectors.min(left);
            left -= extent.sectors;
            !extent.sectors.is_zero()
        });
        self.leave(extents);
    }

    fn leave(&mut self, extents: Vec<Extent>) {
        let Some(inbox) = self.inbox.take() else { return };
        let extents = if extents.is_empty() { data(self.most) } else { extents };
        let mut answered = inbox.lock();
        answered.out -= 1;
        answered.answers.push_back((self.question, extents));
        let wake = answered.answers.len() == 1 && answered.asking != Some(self.question);
        drop(answered);
        if wake {
            (inbox.wake)();
        }
    }
}

impl Drop for ExtentsReply {
    fn drop(&mut self) {
        self.leave(Vec::new());
    }
}

/// What is said of a range of which nothing is known.
pub(crate) fn data(sectors: Sectors) -> Vec<Extent> {
    vec![Extent { sectors, kind: ExtentKind::Data }]
}
