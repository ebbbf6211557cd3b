//! The lock that makes a channel one thread's: biased to its owner.
//!
//! The owner enters by a store and leaves by two; it never does an atomic read-modify-write. A remote poller (a control
//! thread that drains a device while the owner sleeps elsewhere) announces itself, makes every thread of the process
//! pass a barrier, and only then looks whether the owner is inside. Either the owner sees the remote poller or the
//! remote poller sees the owner.
//!
//! Both seats also serve as read-side sections: what was found inside through a lock-free pointer stays until the
//! [`grace_period`] of who replaced the pointer is over.

use crate::sync::{AtomicU64, AtomicUsize, Ordering, fence, heavy_barrier, light_barrier, thread_token, yield_now};
use std::ops::Deref;

/// Who is inside, and how often someone has left. Only written by who takes the seat.
struct Seat {
    taken_by: AtomicUsize,
    left: AtomicU64,
}

impl Seat {
    fn new() -> Self {
        Self { taken_by: AtomicUsize::new(0), left: AtomicU64::new(0) }
    }

    #[inline]
    fn leave(&self) {
        self.left.store(self.left.load(Ordering::Relaxed).wrapping_add(1), Ordering::Release);
        self.taken_by.store(0, Ordering::Release);
    }

    /// What a grace period has to see change, or `None` if nobody is inside.
    fn section(&self) -> Option<u64> {
        let left = self.left.load(Ordering::Acquire);
        (self.taken_by.load(Ordering::Acquire) != 0).then_some(left)
    }

    /// Whether the section that `section` saw has ended.
    fn is_over(&self, seen: u64) -> bool {
        self.taken_by.load(Ordering::Acquire) == 0 || self.left.load(Ordering::Acquire) != seen
    }
}

#[repr(C)]
pub(crate) struct BiasedLock {
    owner: Seat,
    remote: Seat,
    asymmetric: bool,
    /// What the model checker watches in place of that which is locked.
    #[cfg(loom)]
    watched: loom::cell::UnsafeCell<()>,
}

impl BiasedLock {
    pub(crate) fn new(asymmetric: bool) -> Self {
        Self {
            owner: Seat::new(),
            remote: Seat::new(),
            asymmetric,
            #[cfg(loom)]
            watched: loom::cell::UnsafeCell::new(()),
        }
    }

    /// Whether this thread is inside, as the owner or as a remote poller.
    #[inline]
    pub(crate) fn is_inside(&self) -> bool {
        let me = thread_token();
        self.owner.taken_by.load(Ordering::Relaxed) == me || self.remote.taken_by.load(Ordering::Relaxed) == me
    }

    /// Inside: whether as the owner.
    #[inline]
    pub(crate) fn is_owner(&self) -> bool {
        self.owner.taken_by.load(Ordering::Relaxed) == thread_token()
    }

    /// Inside: a number that no other section of the lock has had.
    pub(crate) fn section(&self) -> u64 {
        let owner = self.is_owner();
        let seat = if owner { &self.owner } else { &self.remote };
        seat.left.load(Ordering::Relaxed) << 1 | u64::from(owner)
    }

    /// Enters as the owner; waits for a remote poller.
    ///
    /// # Panics
    /// When the owner is inside already.
    #[inline]
    pub(crate) fn enter(&self) {
        let me = thread_token();
        if self.owner.taken_by.load(Ordering::Relaxed) != 0 {
            inside_already();
        }
        loop {
            self.owner.taken_by.store(me, Ordering::Relaxed);
            light_barrier(self.asymmetric);
            if self.remote.taken_by.load(Ordering::Acquire) == 0 {
                return self.watch();
            }
            self.owner.taken_by.store(0, Ordering::Release);
            while self.remote.taken_by.load(Ordering::Acquire) != 0 {
                yield_now();
            }
        }
    }

    /// Leaves as the owner.
    #[inline]
    pub(crate) fn exit(&self) {
        self.watch();
        self.owner.leave();
    }

    /// Runs `work` inside in the owner's place; not if the owner or another remote poller is inside, or this thread
    /// itself.
    ///
    /// Who finds a remote poller inside may leave its work to that one, which sees everything that was stored before
    /// when it looks again after its own `enter_remotely`.
    #[cold]
    pub(crate) fn enter_remotely<T>(&self, work: impl FnOnce() -> T) -> Option<T> {
        fence(Ordering::SeqCst);
        let me = thread_token();
        if self.remote.taken_by.compare_exchange(0, me, Ordering::SeqCst, Ordering::Relaxed).is_err() {
            return None;
        }
        heavy_barrier(self.asymmetric);
        let out = (self.owner.taken_by.load(Ordering::Acquire) == 0).then(|| {
            self.watch();
            let out = work();
            self.watch();
            out
        });
        self.remote.leave();
        fence(Ordering::SeqCst);
        out
    }

    /// Tells the model checker that what is locked is being written.
    #[inline(always)]
    fn watch(&self) {
        #[cfg(loom)]
        self.watched.with_mut(|_| ());
    }
}

#[cold]
fn inside_already() -> ! {
    panic!("a channel is entered by who is inside it: devices and frames use their Cx, not the Channel");
}

/// The sections that were entered before it was made, of which each ends soon, since nothing in them blocks.
///
/// `L` is what keeps the locks: references while somebody waits, counted ones while nobody does.
pub(crate) struct Sections<L> {
    seen: Vec<(L, Role, u64)>,
    /// How many of `seen`, from the front, have ended. Looked at once, an ended section is not looked at again: its
    /// seat may have been taken for a moment by who then saw a remote poller, which counts as no leaving.
    ended: AtomicUsize,
}

#[derive(Clone, Copy)]
enum Role {
    Owner,
    Remote,
}

impl BiasedLock {
    fn seat(&self, role: Role) -> &Seat {
        match role {
            Role::Owner => &self.owner,
            Role::Remote => &self.remote,
        }
    }
}

impl AsRef<Self> for BiasedLock {
    fn as_ref(&self) -> &Self {
        self
    }
}

impl<L: Clone + Deref<Target: AsRef<BiasedLock>>> Sections<L> {
    /// Who is inside now. Whoever enters later sees what this thread stored before.
    pub(crate) fn now(asymmetric: bool, locks: impl Iterator<Item = L>) -> Self {
        heavy_barrier(asymmetric);
        let mut seen = Vec::new();
        for lock in locks {
            for role in [Role::Owner, Role::Remote] {
                if let Some(section) = (*lock).as_ref().seat(role).section() {
                    seen.push((lock.clone(), role, section));
                }
            }
        }
        Self { seen, ended: AtomicUsize::new(0) }
    }

    /// Whether all have ended. What was done in them is seen by who is told so. Never waits.
    pub(crate) fn are_over(&self) -> bool {
        let mut ended = self.ended.load(Ordering::Acquire);
        while let Some((lock, role, section)) = self.seen.get(ended) {
            if !(**lock).as_ref().seat(*role).is_over(*section) {
                return false;
            }
            ended += 1;
            self.ended.fetch_max(ended, Ordering::AcqRel);
        }
        fence(Ordering::SeqCst);
        true
    }
}

/// Waits until everybody has left the sections of `locks` that they are in now. Must not be called from inside.
pub(crate) fn grace_period<'a>(asymmetric: bool, locks: impl Iterator<Item = &'a BiasedLock>) {
    let sections = Sections::now(asymmetric, locks);
    while !sections.are_over() {
        yield_now();
    }
}
