//! Threads, which a simulated world has none of.

use std::io;
use udm_io::{Executor, Joiner};

/// Refuses to start threads, since their order could not be repeated. What asks for one has to do without.
#[derive(Debug, Default)]
pub struct SimExecutor;

impl Executor for SimExecutor {
    fn spawn(&self, name: &str, _: Box<dyn FnOnce() + Send>) -> io::Result<Joiner> {
        let what = format!("a simulated domain starts no threads, and {name:?} wants one");
        Err(io::Error::new(io::ErrorKind::Unsupported, what))
    }
}
