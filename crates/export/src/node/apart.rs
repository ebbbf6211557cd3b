//! Threads that share no descriptors with the others, for system calls that this process itself may have to answer:
//! whatever looks up a name of its mounts, opens a file there, or does something with a loop device on one.
//!
//! # Why
//! Who is killed while a server has his request waits until it is answered or the connection ends (`fs/fuse/dev.c`,
//! `request_wait_answer`, 6.12). A thread that cannot go keeps the descriptors that it shares with its process,
//! `/dev/fuse` among them, and as long as somebody has that, the connection does not end. A thread apart keeps none:
//! when the process is killed the others go, their descriptors with them; then the kernel ends the connection, the
//! request, and this thread.
//!
//! # Invariants
//! - No descriptor passes between such a thread and another: a number means something else on the other side. What
//!   goes in and comes out are paths, numbers and words; callers keep to it.
//! - What such a thread has opened is closed before anybody hears of its result.

use super::sys;
use rustix::fd::{AsRawFd, OwnedFd};
use std::io;
use std::sync::mpsc::{self, Receiver, Sender};
use udm_io::{Domain, Joiner};

const NAME: &str = "udm-apart";

fn died<E>(_: E) -> io::Error {
    io::Error::other("the thread that was to do it has died")
}

fn on_own_descriptors<T>(work: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    // SAFETY: the thread has just begun, with nothing but `work`, in which there are no descriptors.
    unsafe { sys::own_descriptors() }.and_then(|()| work())
}

/// Does `work` on a thread of its own, and waits for it.
pub(super) fn apart<T: Send + 'static>(
    domain: &Domain,
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    let (answer, answers) = mpsc::channel();
    let work = move || drop(answer.send(on_own_descriptors(work)));
    let thread = domain.executor().spawn(NAME, Box::new(work))?;
    let answer = answers.recv();
    thread.join();
    answer.map_err(died)?
}

/// What an errand has open, if it has.
pub(super) trait AsOpen {
    /// As this thread's, for others; empty without one.
    fn path(&self) -> String;
}

impl AsOpen for OwnedFd {
    fn path(&self) -> String {
        let (thread, number) = (rustix::thread::gettid().as_raw_nonzero(), self.as_raw_fd());
        format!("/proc/self/task/{thread}/fd/{number}")
    }
}

impl AsOpen for Option<OwnedFd> {
    fn path(&self) -> String {
        self.as_ref().map_or_else(String::new, AsOpen::path)
    }
}

/// Work in two parts: what the first has opened stays open until the second is asked for.
pub(super) struct Errand<T> {
    path: String,
    go: Sender<()>,
    answers: Receiver<io::Result<T>>,
    thread: Joiner,
}

impl<T: Send + 'static> Errand<T> {
    /// Does the first part, and waits for it. Dropped without more, what it has opened is closed.
    pub(super) fn begin<O: AsOpen>(
        domain: &Domain,
        first: impl FnOnce() -> io::Result<O> + Send + 'static,
        second: impl FnOnce(O) -> io::Result<T> + Send + 'static,
    ) -> io::Result<Self> {
        let (begun, has_begun) = mpsc::channel();
        let (answer, answers) = mpsc::channel();
        let (go, goes_on) = mpsc::channel();
        let work = move || match on_own_descriptors(first) {
            Ok(open) => {
                let _ = begun.send(Ok(open.path()));
                if goes_on.recv().is_ok() {
                    let _ = answer.send(second(open));
                }
            }
            Err(error) => drop(begun.send(Err(error))),
        };
        let thread = domain.executor().spawn(NAME, Box::new(work))?;
        let path = has_begun.recv().map_err(died)??;
        Ok(Self { path, go, answers, thread })
    }

    /// A path to what is open, by which no name of it is looked up.
    pub(super) fn path(&self) -> &str {
        &self.path
    }

    /// Does the second part, and waits for it.
    pub(super) fn finish(self) -> io::Result<T> {
        let _ = self.go.send(());
        let answer = self.answers.recv();
        self.thread.join();
        answer.map_err(died)?
    }
}
