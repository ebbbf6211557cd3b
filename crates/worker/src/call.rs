//! What control threads ask of a worker.

use crate::lock;
use crate::worker::{Service, Worker};
use std::sync::{Arc, Mutex};
use udm_base::Errno;
use udm_core::Error;

/// Where an answer is left.
pub struct Reply<T>(Arc<Mutex<Option<T>>>);

impl<T> Clone for Reply<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T> Default for Reply<T> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<T> Reply<T> {
    /// Answers.
    pub fn give(&self, answer: T) {
        *lock(&self.0) = Some(answer);
    }

    fn take(&self) -> Option<T> {
        lock(&self.0).take()
    }
}

impl<S: Service> Worker<S> {
    /// Asks the worker and waits for the answer, running it if nobody does. Blocks. Not from inside a channel. Fails
    /// when the worker has ended.
    pub fn call<T, E: Into<S::Event>>(&self, event: impl FnOnce(Reply<T>) -> E) -> Result<T, Error> {
        let reply = Reply::default();
        self.leave(event(reply.clone()).into());
        self.wait_for(&reply)
    }

    /// Waits for an answer to what has been left to the worker. Meanwhile it is run from here, and channels whose
    /// threads sleep elsewhere are served: bios of theirs may be what it waits for.
    pub fn wait_for<T>(&self, reply: &Reply<T>) -> Result<T, Error> {
        let answer = self.domain().drain_with(|cx| {
            self.kick_patiently(cx);
            match reply.take() {
                Some(answer) => Some(Some(answer)),
                None => self.has_ended().then(|| reply.take()),
            }
        });
        answer.ok_or_else(|| Error::new(Errno::ENXIO, format!("the {} is closed", S::NAME)))
    }
}
