//! A channel's side of polled null devices: the queues that it has bios on.

use super::queue::PollQueue;
use crate::bio::Bio;
use crate::{Cx, Nanos, Source};
use rustix::fd::BorrowedFd;
use std::cell::{Cell, RefCell};
use std::convert::Infallible;
use std::sync::Arc;

/// Queues that are kept without a bio of this channel, so that a steady load allocates nothing.
const IDLE: usize = 16;

/// A queue, and how many bios of this channel wait on it.
struct Entry {
    queue: Arc<PollQueue>,
    out: Cell<usize>,
}

/// The source that polls the queues.
#[derive(Default)]
pub(super) struct Polls {
    // Boxed, because completion frames point at the entries.
    #[allow(clippy::vec_box)]
    entries: RefCell<Vec<Box<Entry>>>,
    out: Cell<usize>,
}

impl Polls {
    /// The channel's.
    pub(super) fn of<'a>(cx: &Cx<'a>) -> &'a Self {
        let Ok(polls) = cx.source(|| Ok::<_, Infallible>(Self::default()));
        polls
    }

    /// Puts a bio on a queue until `due`. Gives it back when it has no room for a frame.
    #[inline]
    pub(super) fn push(&self, queue: &Arc<PollQueue>, mut bio: Bio, due: Nanos) -> Result<(), Bio> {
        let mut entries = self.entries.borrow_mut();
        let i = match entries.iter().position(|e| Arc::ptr_eq(&e.queue, queue)) {
            Some(i) => i,
            None => {
                if entries.len() >= IDLE {
                    entries.retain(|e| e.out.get() > 0);
                }
                entries.push(Box::new(Entry { queue: queue.clone(), out: Cell::new(0) }));
                entries.len() - 1
            }
        };
        let entry = &*entries[i];
        // SAFETY: the entry stays in its box while its count is not 0, which the frame brings down.
        if !unsafe { bio.push_frame(came_home, std::ptr::from_ref(entry).cast()) } {
            return Err(bio);
        }
        entry.out.set(entry.out.get() + 1);
        self.out.set(self.out.get() + 1);
        queue.push(bio, due);
        Ok(())
    }
}

/// Counts a bio that has left its queue.
///
/// # Safety
/// `word` is the entry that counted it, of this channel's [`Polls`].
unsafe fn came_home(cx: &Cx<'_>, bio: Bio, word: *const ()) -> Option<Bio> {
    // SAFETY: per the contract; only this channel touches its counts.
    let entry = unsafe { &*word.cast::<Entry>() };
    entry.out.set(entry.out.get() - 1);
    let polls = Polls::of(cx);
    polls.out.set(polls.out.get() - 1);
    Some(bio)
}

impl Source for Polls {
    fn poll(&self, cx: &Cx<'_>) -> usize {
        if self.out.get() == 0 {
            return 0;
        }
        let (now, before) = (cx.now(), self.out.get());
        let mut i = 0;
        loop {
            // Completions may submit, and so add entries: no borrow is held while a queue is polled.
            let queue = match self.entries.borrow().get(i) {
                Some(entry) if entry.out.get() > 0 => Some(entry.queue.clone()),
                Some(_) => None,
                None => break,
            };
            if let Some(queue) = queue {
                // Held elsewhere: that poller completes what is due.
                let _ = queue.poll(now);
            }
            i += 1;
        }
        before.saturating_sub(self.out.get())
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn is_busy(&self) -> bool {
        self.out.get() > 0
    }

    fn must_poll(&self) -> bool {
        self.is_busy()
    }
}
