//! What a thread is told by others, and how it is woken for that.

use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, mpsc};
use udm_io::{Channel, Nanos, Waker};

/// Wakes a thread.
pub(crate) trait Notify {
    /// Ends the thread's present or next sleep.
    fn notify(&self);
}

impl Notify for Waker {
    fn notify(&self) {
        self.wake();
    }
}

/// Wakes a thread that sleeps in poll(2), on this descriptor among others.
pub(crate) struct Notifier(OwnedFd);

impl Notifier {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
    }

    /// The thread is awake.
    pub(crate) fn drain(&self) {
        // Empty means that somebody else was here.
        let _ = rustix::io::read(&self.0, &mut [0u8; 8]);
    }
}

impl Notify for Notifier {
    fn notify(&self) {
        // Full means that it was notified already.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }
}

impl<N: Notify> Notify for std::sync::Arc<N> {
    fn notify(&self) {
        (**self).notify();
    }
}

impl AsFd for Notifier {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// A thread's mailbox. Any thread puts something in; the thread itself takes it out.
pub(crate) struct Mailbox<C, N> {
    /// `None` once the thread has ended.
    mail: Mutex<Option<VecDeque<C>>>,
    pending: AtomicBool,
    notifier: N,
}

impl<C, N: Notify> Mailbox<C, N> {
    /// An empty one, of a thread that is woken by `notifier`.
    pub(crate) fn new(notifier: N) -> Self {
        Self { mail: Mutex::new(Some(VecDeque::new())), pending: AtomicBool::new(false), notifier }
    }

    fn lock(&self) -> MutexGuard<'_, Option<VecDeque<C>>> {
        self.mail.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts something in and wakes the thread. If the thread has ended, what was to be put in is dropped, and the
    /// sender of an answer with it.
    pub(crate) fn send(&self, mail: C) {
        match &mut *self.lock() {
            Some(all) => all.push_back(mail),
            None => return,
        }
        self.pending.store(true, Ordering::Release);
        self.notifier.notify();
    }

    /// Wakes the thread, which knows why.
    pub(crate) fn wake(&self) {
        self.notifier.notify();
    }

    /// Whether something was put in since it was taken last.
    #[inline]
    pub(crate) fn is_pending(&self) -> bool {
        self.pending.load(Ordering::Acquire)
    }

    /// Takes everything out. Without a lock when there is nothing.
    #[inline]
    pub(crate) fn take(&self) -> VecDeque<C> {
        if !self.is_pending() || !self.pending.swap(false, Ordering::Acquire) {
            return VecDeque::new();
        }
        self.lock().as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// The thread has ended: it hears nothing more.
    pub(crate) fn close(&self) {
        let unheard = self.lock().take();
        drop(unheard);
    }

    /// Whether the thread has ended.
    pub(crate) fn is_closed(&self) -> bool {
        self.lock().is_none()
    }
}

/// What a worker is told.
pub(crate) enum Order<C> {
    /// What its kind is.
    Command(C),
    /// Take nothing new, finish what is under way; answer when nothing is.
    Pause(mpsc::Sender<()>),
    /// Go on after a pause.
    Resume,
    /// Take nothing new, finish what is under way, and end; at the latest at this time. The sender is dropped when it
    /// has heard.
    End(Nanos, mpsc::Sender<()>),
}

/// The side of a worker that other threads see.
pub(crate) struct Handle<C, S = ()> {
    pub(crate) mailbox: Mailbox<Order<C>, Waker>,
    /// What may be known of it at any time.
    pub(crate) status: S,
}

impl<C, S> Handle<C, S> {
    /// Of a worker that sleeps in `channel`.
    pub(crate) fn new(channel: &Channel, status: S) -> Self {
        Self { mailbox: Mailbox::new(channel.waker()), status }
    }

    /// Tells the worker something.
    pub(crate) fn tell(&self, command: C) {
        self.order(Order::Command(command));
    }

    /// As [`tell`](Self::tell), of what all workers are told.
    pub(crate) fn order(&self, order: Order<C>) {
        self.mailbox.send(order);
    }
}
