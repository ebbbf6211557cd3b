//! The threads of a measurement: all begin together.

use crate::Error;
use crate::error::JobError;
use std::sync::{Arc, Condvar, Mutex, PoisonError, mpsc};
use udm_io::{Clock, Domain, Nanos};

/// Lets threads wait until all are ready.
struct Gate {
    state: Mutex<State>,
    open: Condvar,
    clock: Arc<dyn Clock>,
}

struct State {
    missing: usize,
    /// When the last was there.
    opened: Nanos,
}

impl Gate {
    fn less(&self, n: usize) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.missing -= n;
        if state.missing == 0 {
            state.opened = self.clock.now();
            self.open.notify_all();
        }
    }

    fn wait(&self) -> Nanos {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        self.open.wait_while(state, |state| state.missing > 0).unwrap_or_else(PoisonError::into_inner).opened
    }
}

/// A thread's place at the gate. Dropped without having waited, as on an error, it keeps nobody else waiting.
pub(crate) struct Ready(Option<Arc<Gate>>);

impl Ready {
    /// Blocks until every job of the crew is ready, or has ended. Gives the moment, which is one for all: on few CPUs
    /// jobs go on one after the other, and one that counted from its own start would still run when the others are
    /// done.
    pub(crate) fn wait(mut self) -> Nanos {
        let gate = self.0.take().expect("waited for once, and dropped after");
        gate.less(1);
        gate.wait()
    }
}

impl Drop for Ready {
    fn drop(&mut self) {
        if let Some(gate) = self.0.take() {
            gate.less(1);
        }
    }
}

/// Runs `work` in `jobs` threads, each with its number and its [`Ready`], and waits for all. The first error counts.
pub(crate) fn run<T: Send + 'static>(
    domain: &Domain,
    jobs: usize,
    device: &str,
    work: impl Fn(usize, Ready) -> Result<T, JobError> + Send + Sync + 'static,
) -> Result<Vec<T>, Error> {
    let state = Mutex::new(State { missing: jobs, opened: Nanos(0) });
    let gate = Arc::new(Gate { state, open: Condvar::new(), clock: domain.clock().clone() });
    let work = Arc::new(work);
    let (send, results) = mpsc::channel();
    let mut joiners = Vec::new();
    let mut unstarted = None;
    for job in 0..jobs {
        let (work, send, ready) = (work.clone(), send.clone(), Ready(Some(gate.clone())));
        let thread = move || {
            // Whoever listens is gone only after it has heard of an error.
            let _ = send.send(work(job, ready));
        };
        match domain.executor().spawn(&format!("bench-{job}"), Box::new(thread)) {
            Ok(joiner) => joiners.push(joiner),
            Err(source) => {
                // The place of this job went with its closure; those of the jobs after it are given up here.
                gate.less(jobs - job - 1);
                unstarted = Some(Error::System { what: format!("thread {job} of {jobs}"), source });
                break;
            }
        }
    }
    drop(send);
    joiners.into_iter().for_each(udm_io::Joiner::join);
    if let Some(error) = unstarted {
        return Err(error);
    }
    let done: Vec<T> = results.iter().collect::<Result<_, _>>().map_err(|e| e.of(device))?;
    assert_eq!(done.len(), jobs, "a job has panicked");
    Ok(done)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn all_begin_together() {
        let here = Arc::new(AtomicUsize::new(0));
        let counted = here.clone();
        let seen = run(&Domain::default(), 4, "d", move |job, ready| {
            counted.fetch_add(1, Ordering::SeqCst);
            let start = ready.wait();
            Ok((start, job, counted.load(Ordering::SeqCst)))
        });
        let mut seen = seen.unwrap();
        seen.sort_unstable();
        let start = seen[0].0;
        assert_eq!(seen, [(start, 0, 4), (start, 1, 4), (start, 2, 4), (start, 3, 4)]);
    }

    #[test]
    fn one_that_fails_early_keeps_nobody_waiting() {
        let result = run(&Domain::default(), 3, "d", |job, ready| match job {
            1 => Err(JobError::Wrong { byte: 7, detail: "x".to_owned() }),
            _ => {
                ready.wait();
                Ok(())
            }
        });
        assert_eq!(result.unwrap_err().to_string(), "d: verify failed at byte 7: x");
    }
}
