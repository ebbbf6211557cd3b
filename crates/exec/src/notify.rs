//! The threads that take system calls from a listener and answer them.
//!
//! One thread at a time, the *leader*, waits for the next call. When it has one it makes another the leader, and
//! answers the call itself: so a call that takes long, or whose memory does not come, keeps nobody waiting, and a short
//! one is answered by the thread that received it. There are as many threads as calls are under way, and one more.

use crate::sys::{self, Notification};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use tracing::{debug, error};
use udm_io::Executor;

/// Threads that wait to become the leader; more are let go.
const FOLLOWERS: usize = 4;

/// What answers a call: exactly once.
pub(crate) trait Answerer: Send + Sync + 'static {
    /// Answers the call, or has the kernel go on with it. May block.
    fn answer(&self, listener: &OwnedFd, call: Notification);
}

struct Shared<A> {
    listener: OwnedFd,
    leader: Mutex<()>,
    /// Threads that lead, or wait to.
    idle: AtomicUsize,
    answerer: Arc<A>,
    executor: Arc<dyn Executor>,
    /// Told when nobody is behind the filter any more.
    ended: Box<dyn Fn() + Send + Sync>,
    has_ended: AtomicUsize,
}

/// Answers the calls of a listener by threads of its own, until nobody is behind its filter any more; then calls
/// `ended`, once.
///
/// # Errors
/// No thread can be started.
pub(crate) fn serve<A: Answerer>(
    listener: OwnedFd,
    answerer: Arc<A>,
    executor: Arc<dyn Executor>,
    ended: impl Fn() + Send + Sync + 'static,
) -> std::io::Result<()> {
    sys::wake_up_nearby(&listener);
    let shared = Shared {
        listener,
        leader: Mutex::new(()),
        idle: AtomicUsize::new(1),
        answerer,
        executor,
        ended: Box::new(ended),
        has_ended: AtomicUsize::new(0),
    };
    start(Arc::new(shared))
}

fn start<A: Answerer>(shared: Arc<Shared<A>>) -> std::io::Result<()> {
    let executor = shared.executor.clone();
    executor.spawn("udm-exec-call", Box::new(move || shared.work())).map(drop)
}

impl<A: Answerer> Shared<A> {
    fn work(self: Arc<Self>) {
        loop {
            let call = {
                let _leader = self.leader.lock().unwrap_or_else(PoisonError::into_inner);
                self.next()
            };
            let Some(call) = call else {
                if self.has_ended.swap(1, Ordering::AcqRel) == 0 {
                    (self.ended)();
                }
                return;
            };
            if self.idle.fetch_sub(1, Ordering::AcqRel) == 1 {
                self.idle.fetch_add(1, Ordering::AcqRel);
                if let Err(error) = start(self.clone()) {
                    // This one leads again when it is done. Until then the others wait.
                    error!("no thread for the next call: {error}");
                    self.idle.fetch_sub(1, Ordering::AcqRel);
                }
            }
            self.answerer.answer(&self.listener, call);
            if self.idle.fetch_add(1, Ordering::AcqRel) >= FOLLOWERS {
                self.idle.fetch_sub(1, Ordering::AcqRel);
                return;
            }
        }
    }

    /// The next call; `None` when there is nobody any more.
    fn next(&self) -> Option<Notification> {
        loop {
            let mut ready = [PollFd::new(&self.listener, PollFlags::IN)];
            match poll(&mut ready, None) {
                Err(Errno::INTR) => continue,
                Err(error) => {
                    error!("the listener cannot be waited for: {error}");
                    return None;
                }
                Ok(_) if ready[0].revents().contains(PollFlags::IN) => {}
                Ok(_) => return None,
            }
            match sys::receive(&self.listener) {
                Ok(Some(call)) => return Some(call),
                Ok(None) => {}
                Err(error) => {
                    debug!("the listener has ended: {error}");
                    return None;
                }
            }
        }
    }
}
