//! Threads, so that the simulator can do without.

use std::io;

/// Waits for a started thread.
pub struct Joiner(Box<dyn FnOnce() + Send>);

impl Joiner {
    /// A joiner that calls `join`.
    pub fn new(join: impl FnOnce() + Send + 'static) -> Self {
        Self(Box::new(join))
    }

    /// Blocks until the thread has ended.
    pub fn join(self) {
        (self.0)();
    }
}

/// Starts threads. Nothing below the binary starts one in another way.
pub trait Executor: Send + Sync {
    /// Runs `work` on a thread named `name` (at most 15 bytes are shown by the kernel).
    fn spawn(&self, name: &str, work: Box<dyn FnOnce() + Send>) -> io::Result<Joiner>;
}

/// Threads of the operating system.
#[derive(Debug, Default)]
pub struct ThreadExecutor;

impl Executor for ThreadExecutor {
    fn spawn(&self, name: &str, work: Box<dyn FnOnce() + Send>) -> io::Result<Joiner> {
        let handle = std::thread::Builder::new().name(name.to_owned()).spawn(work)?;
        // A panic has been printed by its thread; the joiner only waits.
        Ok(Joiner::new(move || drop(handle.join())))
    }
}
