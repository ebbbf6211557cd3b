//! Waiting for the answers of other threads until a time.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::Duration;
use udm_io::{Clock, Nanos};

/// How long hang-ups are waited for: a device that is suspended may keep requests longer.
pub(crate) const REAP: Duration = Duration::from_secs(1);

/// A time until which a thread waits.
pub(crate) struct Deadline {
    clock: Arc<dyn Clock>,
    at: Nanos,
}

/// Answers that are due when something has come about, which `T` knows.
pub(crate) struct Due<T>(Vec<(T, Sender<()>)>);

impl<T> Default for Due<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T> Due<T> {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// One more.
    pub(crate) fn push(&mut self, what: T, answer: Sender<()>) {
        self.0.push((what, answer));
    }

    /// What is awaited.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.0.iter_mut().map(|(what, _)| what)
    }

    /// Answers where it has come about.
    pub(crate) fn answer(&mut self, mut has_come: impl FnMut(&mut T) -> bool) {
        // The one that asked may have stopped waiting.
        self.0.extract_if(.., |(what, _)| has_come(what)).for_each(|(_, answer)| _ = answer.send(()));
    }
}

/// What came of several that were asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Answers {
    /// All have answered.
    All,
    /// All have but those that have ended.
    Fewer,
    /// Some have not in time.
    Late,
}

impl Deadline {
    /// So much from now on.
    pub(crate) fn after(clock: &Arc<dyn Clock>, patience: Duration) -> Self {
        let at = clock.now().after(u64::try_from(patience.as_nanos()).unwrap_or(u64::MAX));
        Self { clock: clock.clone(), at }
    }

    /// At that time.
    pub(crate) fn at(clock: &Arc<dyn Clock>, at: Nanos) -> Self {
        Self { clock: clock.clone(), at }
    }

    /// When it is.
    pub(crate) fn time(&self) -> Nanos {
        self.at
    }

    /// Whether it is over.
    pub(crate) fn is_over(&self) -> bool {
        self.clock.now() >= self.at
    }

    /// Blocks for one answer, until the deadline.
    pub(crate) fn receive<T>(&self, answers: &Receiver<T>) -> Result<T, RecvTimeoutError> {
        answers.recv_timeout(Duration::from_nanos(self.at.since(self.clock.now())))
    }

    /// Blocks for the answers of `count` that were asked, until the deadline.
    pub(crate) fn answers(&self, answers: &Receiver<()>, count: usize) -> Answers {
        for _ in 0..count {
            match self.receive(answers) {
                Ok(()) => {}
                Err(RecvTimeoutError::Disconnected) => return Answers::Fewer,
                Err(RecvTimeoutError::Timeout) => return Answers::Late,
            }
        }
        Answers::All
    }
}
