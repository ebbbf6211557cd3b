//! A channel's side of polling: the queues that it has bios on, and which of them a poll looks into.

use super::EVERYWHERE;
use super::cookie::{Cookie, PollPath};
use super::queue::{DeviceQueue, Polled};
use super::set::{QueueSet, changes};
use crate::channel::{ChannelCore, Record};
use crate::{Bio, Cx, Nanos, OpFlags, Source};
use rustix::fd::BorrowedFd;
use std::cell::{Cell, RefCell};
use std::convert::Infallible;
use std::ptr::NonNull;
use std::sync::Arc;

/// Queues that are kept without a bio of this channel, so that a steady load allocates nothing.
const IDLE: usize = 16;
/// Places where a queue's entry is looked for before all of them are: by the low bits of its serial number.
const NEAR: usize = 16;

/// A queue, and how many bios of this channel are on it.
struct Entry {
    /// Keeps the queue while `out` is not 0.
    set: Arc<QueueSet>,
    queue: Arc<DeviceQueue>,
    out: Cell<usize>,
    /// The source that has the entry, which stays in its box as long as its channel.
    polls: *const Polls,
}

// SAFETY: the pointer leads to the source that owns the entry, which goes where it goes.
unsafe impl Send for Entry {}

/// The source that polls the queues.
#[derive(Default)]
pub struct Polls {
    #[expect(clippy::vec_box, reason = "completion frames point at the entries")]
    entries: RefCell<Vec<Box<Entry>>>,
    /// Where entries are, for most of them; anything else is a number past their end, or another's.
    near: [Cell<usize>; NEAR],
    /// Bios on queues, clones counted one by one.
    out: Cell<usize>,
    /// Bios as they were submitted that are on queues, by the path that they ask for.
    by_path: [Cell<usize>; 3],
    /// Bios that have come home from queues since the channel was made.
    home: Cell<usize>,
    /// The entry whose turn it is.
    turn: Cell<usize>,
    /// Rounds in a row that found nothing.
    empty: Cell<u32>,
    /// Somebody further up the stack uses entries: none is taken out.
    in_use: Cell<u32>,
}

impl Polls {
    /// The channel's.
    #[inline]
    pub fn of<'a>(cx: &Cx<'a>) -> &'a Self {
        cx.polls()
    }

    #[inline]
    fn counter(&self, path: PollPath) -> &Cell<usize> {
        &self.by_path[path as usize]
    }

    /// Whether bios that ask for a path are on queues.
    #[inline]
    fn has(&self, path: PollPath) -> bool {
        self.counter(path).get() > 0
    }

    /// Puts a bio on the queue of `set` that the channel maps to. Gives it back when there is none, or the bio has no
    /// room for a frame: then it is to complete by interrupt.
    #[inline]
    pub fn push(&self, cx: &Cx<'_>, set: &Arc<QueueSet>, mut bio: Bio) -> Result<(), Bio> {
        let Some(queue) = set.index_of(cx).and_then(|index| set.queue(index)) else { return Err(bio) };
        let mut entries = self.entries.borrow_mut();
        // Not by a search: which of several queues a bio meets is by chance, and a search's steps are guessed wrong.
        let near = self.near[queue.serial as usize % NEAR].get();
        let entry = match entries.get(near) {
            Some(entry) if entry.queue.serial == queue.serial => &**entry,
            _ => self.entry(&mut entries, set, queue),
        };
        // SAFETY: the entry stays in its box while its count is not 0, which the frame brings down.
        if !unsafe { bio.push_frame(came_home, std::ptr::from_ref(entry).cast()) } {
            return Err(bio);
        }
        entry.out.set(entry.out.get() + 1);
        self.out.set(self.out.get() + 1);
        self.note(cx, &mut bio, queue.serial);
        queue.push(bio);
        Ok(())
    }

    /// Notes in the bio as it was submitted where this part of it is.
    #[inline]
    fn note(&self, cx: &Cx<'_>, bio: &mut Bio, serial: u64) {
        let place = changes() << 1 | cx.is_owner() as u32;
        let polled = &mut top(bio).polled;
        let path = match polled.cookie.path() {
            None if cx.policy().fast_path() => {
                (polled.cookie, polled.place) = (Cookie::queue(serial), place);
                PollPath::Fast
            }
            None => {
                (polled.cookie, polled.place) = (Cookie::channel(cx.id()), place);
                PollPath::Sub
            }
            Some(before) => {
                if polled.parts > 0 {
                    let count = self.counter(before);
                    count.set(count.get() - 1);
                }
                // In one place until now and here too: the rest of a split.
                let moved = before == PollPath::Default || polled.place != place;
                polled.cookie = if moved { Cookie::ANYWHERE } else { Cookie::channel(cx.id()) };
                if moved { PollPath::Default } else { PollPath::Sub }
            }
        };
        let count = self.counter(path);
        count.set(count.get() + 1);
        polled.parts += 1;
    }

    /// Whether polled bios are out.
    #[inline]
    pub(crate) fn is_polled(&self) -> bool {
        self.out.get() > 0
    }

    /// As [`Source::poll`], for a bio whose cookie the submitter kept.
    pub(crate) fn poll_for(&self, cx: &Cx<'_>, cookie: Cookie) -> usize {
        let serial = cookie.serial().filter(|_| self.empty.get() < EVERYWHERE);
        let (named, before) = (serial.and_then(|serial| self.find(serial)), self.home.get());
        match (named, cookie.path()) {
            (Some(i), _) => {
                self.look(cx, i, cx.now());
                self.round(before)
            }
            // This channel's, unless there are none such: then it is not this channel's cookie, or stale.
            (None, Some(PollPath::Sub)) if self.has(PollPath::Sub) => self.poll(cx),
            _ => {
                self.all(cx, cx.now());
                self.round(before)
            }
        }
    }

    /// The entry of the queue that has the number, if bios of this channel are on it.
    fn find(&self, serial: u64) -> Option<usize> {
        let entries = self.entries.borrow();
        entries.iter().position(|e| e.queue.serial == serial && e.out.get() > 0)
    }

    /// Gives `work` an entry, which stays as long: completions may submit, and so change the list, so that it is not
    /// borrowed meanwhile.
    #[inline]
    fn with_entry(&self, i: usize, work: impl FnOnce(&Entry)) {
        // By a function: what is borrowed in a `let` stays borrowed as long as it.
        let entry: *const Entry = std::ptr::from_ref(&self.entries.borrow()[i]);
        self.in_use.set(self.in_use.get() + 1);
        // SAFETY: in its box, which is not taken out while `in_use` is not 0.
        work(unsafe { &*entry });
        self.in_use.set(self.in_use.get() - 1);
    }

    #[inline]
    fn look(&self, cx: &Cx<'_>, i: usize, now: Nanos) {
        self.with_entry(i, |entry| self.look_into(cx, &entry.queue, now));
    }

    #[inline]
    fn look_into(&self, cx: &Cx<'_>, queue: &DeviceQueue, now: Nanos) {
        let (out, counts) = (self.home.get(), cx.poll_counts());
        match queue.poll(cx, now, cx.policy().skip_busy()) {
            Polled::Done { found, waited } => {
                if found > 0 {
                    counts.found.add(found as u64);
                    let mine = self.home.get().wrapping_sub(out);
                    counts.handed_over.add(found.saturating_sub(mine) as u64);
                }
                if waited {
                    counts.waited.add(1);
                }
            }
            Polled::Skipped => counts.skipped.add(1),
        }
    }

    /// The queue of the bios in turn.
    #[inline]
    fn one(&self, cx: &Cx<'_>, now: Nanos) {
        let found = {
            let entries = self.entries.borrow();
            let (n, at) = (entries.len(), self.turn.get().min(entries.len()));
            (at..n).chain(0..at).find(|i| entries[*i].out.get() > 0)
        };
        if let Some(i) = found {
            self.turn.set(i + 1);
            self.look(cx, i, now);
        }
    }

    /// Every queue that this channel has bios on.
    fn mine(&self, cx: &Cx<'_>, now: Nanos) {
        let n = self.entries.borrow().len();
        for i in 0..n {
            if self.entries.borrow()[i].out.get() > 0 {
                self.look(cx, i, now);
            }
        }
    }

    /// Every queue of every device that this channel has bios on, or had lately.
    #[cold]
    fn all(&self, cx: &Cx<'_>, now: Nanos) {
        let n = self.entries.borrow().len();
        for i in 0..n {
            self.with_entry(i, |entry| entry.set.each().for_each(|queue| self.look_into(cx, queue, now)));
        }
    }

    /// The entry of a queue, wherever it is, made if the channel has not used the queue lately.
    #[expect(clippy::vec_box, reason = "completion frames point at the entries")]
    #[cold]
    fn entry<'a>(&self, entries: &'a mut Vec<Box<Entry>>, set: &Arc<QueueSet>, queue: &Arc<DeviceQueue>) -> &'a Entry {
        let known = entries.iter().position(|e| Arc::ptr_eq(&e.queue, queue));
        let i = known.unwrap_or_else(|| self.enter(entries, set, queue));
        self.near[queue.serial as usize % NEAR].set(i);
        &entries[i]
    }

    /// Makes room for a queue that the channel has not used lately.
    #[expect(clippy::vec_box, reason = "completion frames point at the entries")]
    fn enter(&self, entries: &mut Vec<Box<Entry>>, set: &Arc<QueueSet>, queue: &Arc<DeviceQueue>) -> usize {
        if entries.len() >= IDLE && self.in_use.get() == 0 {
            entries.retain(|e| e.out.get() > 0);
        }
        entries.push(Box::new(Entry { set: set.clone(), queue: queue.clone(), out: Cell::new(0), polls: self }));
        entries.len() - 1
    }

    /// Counts a round, which began when `before` bios had come home.
    #[inline]
    fn round(&self, before: usize) -> usize {
        let moved = self.home.get().wrapping_sub(before);
        self.empty.set(if moved > 0 { 0 } else { self.empty.get().saturating_add(1) });
        moved
    }
}

/// The mark, as a bio's free word, of one that its queue cannot serve: it goes to its device again, to complete by
/// interrupt.
const AGAIN: u64 = u64::MAX;

/// Marks a bio that its queue cannot serve, before it is ended there: it goes to its device once more, without HIPRI.
pub fn again_by_interrupt(bio: &mut Bio) {
    bio.set_word(AGAIN);
}

/// Counts a bio that has left its queue.
///
/// # Safety
/// `word` is the entry that counted it, of this channel's [`Polls`].
unsafe fn came_home(cx: &Cx<'_>, mut bio: Bio, word: *const ()) -> Option<Bio> {
    // SAFETY: per the contract; only this channel touches its counts.
    let entry = unsafe { &*word.cast::<Entry>() };
    entry.out.set(entry.out.get() - 1);
    // SAFETY: the source that has the entry is this channel's, and lives as long.
    let polls = unsafe { &*entry.polls };
    polls.out.set(polls.out.get() - 1);
    polls.home.set(polls.home.get().wrapping_add(1));
    let polled = &mut top(&mut bio).polled;
    polled.parts -= 1;
    if polled.parts == 0
        && let Some(path) = polled.cookie.path()
    {
        let count = polls.counter(path);
        count.set(count.get() - 1);
    }
    if bio.word() == AGAIN { once_more(cx, bio) } else { Some(bio) }
}

/// Sends a bio to its device again, which is the one whose queue it was on, and to the sector that it had there.
#[cold]
fn once_more(cx: &Cx<'_>, mut bio: Bio) -> Option<Bio> {
    bio.set_word(0);
    let flags = bio.flags();
    bio.set_flags(flags.without(OpFlags::HIPRI));
    cx.submit(bio);
    None
}

/// The record of a polled bio as it was submitted, of which `bio` is that itself or a clone.
#[inline]
fn top(bio: &mut Bio) -> &mut Record {
    let mut record: *mut Record = bio.record_mut();
    loop {
        // SAFETY: the bio's own record, or the parent of a clone: held by its clones, of which this is one, all of one
        // channel, which the thread is inside. Internal bios, whose parent is something else, are never polled.
        let at = unsafe { &mut *record };
        if at.level == 0 {
            return at;
        }
        record = at.parent;
    }
}

impl Bio {
    /// How the bio, or the one that it is a clone of, was polled for; `None` when it completes by interrupt. Inside its
    /// channel only, as frames are.
    #[inline]
    pub fn poll_path(&self) -> Option<PollPath> {
        if !self.flags().contains(OpFlags::HIPRI) {
            return None;
        }
        let mut at = self.record();
        while at.level > 0 {
            // SAFETY: as in `top`.
            at = unsafe { &*at.parent };
        }
        at.polled.cookie.path()
    }
}

impl<'a> Cx<'a> {
    /// The channel's source that polls device queues, if it has one.
    #[inline]
    pub(crate) fn find_polls(&self) -> Option<&'a Polls> {
        // SAFETY: inside; the reference ends with the expression.
        let polls = unsafe { self.core().inner() }.polls?;
        // SAFETY: set by `make_polls` only; a source, which stays where it is while the channel lives.
        Some(unsafe { polls.cast::<Polls>().as_ref() })
    }

    /// The same, made on first use.
    #[inline]
    pub(crate) fn polls(&self) -> &'a Polls {
        self.find_polls().unwrap_or_else(|| self.make_polls())
    }

    #[cold]
    fn make_polls(&self) -> &'a Polls {
        let Ok(polls) = self.source(|| Ok::<_, Infallible>(Polls::default()));
        // SAFETY: inside; the reference ends with the expression.
        unsafe { self.core().inner() }.polls = Some(NonNull::from(polls).cast());
        polls
    }
}

impl ChannelCore {
    /// As [`poll`](Self::poll), for one polled bio: the mail, and the queues that its cookie asks for.
    pub(crate) fn poll_for(&self, cookie: Cookie) -> usize {
        let cx = Cx::new(self);
        match cx.find_polls().filter(|polls| polls.is_polled() && cookie != Cookie::NONE) {
            Some(polls) => {
                let moved = if self.has_mail() { self.read_mail() } else { 0 };
                moved + polls.poll_for(&cx, cookie)
            }
            None => self.poll(),
        }
    }
}

impl Source for Polls {
    #[inline]
    fn poll(&self, cx: &Cx<'_>) -> usize {
        if self.out.get() == 0 {
            return 0;
        }
        let (now, before) = (cx.now(), self.home.get());
        if self.has(PollPath::Default) || self.empty.get() >= EVERYWHERE {
            self.empty.set(0);
            self.all(cx, now);
            return self.home.get().wrapping_sub(before);
        }
        if self.has(PollPath::Sub) {
            self.mine(cx, now)
        } else {
            self.one(cx, now)
        }
        self.round(before)
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
