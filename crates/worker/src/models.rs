//! Kicks against runs, in every order that the memory model allows. `cargo xtask loom` runs these; they drive the code
//! that ships.

/// The model checker's own mutex lets nobody in between the last access under it and its end, and holds back who tries
/// it.
pub(crate) mod try_lock {
    use loom::sync::atomic::{AtomicBool, Ordering};
    use std::ops::{Deref, DerefMut};

    pub(crate) struct Mutex<T> {
        held: AtomicBool,
        value: std::sync::Mutex<T>,
    }

    pub(crate) struct Guard<'a, T>(&'a AtomicBool, Option<std::sync::MutexGuard<'a, T>>);

    impl<T> Mutex<T> {
        pub(crate) fn new(value: T) -> Self {
            Self { held: AtomicBool::new(false), value: std::sync::Mutex::new(value) }
        }

        pub(crate) fn try_lock(&self) -> Result<Guard<'_, T>, ()> {
            let taken = self.held.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed);
            taken.map(|_| Guard(&self.held, self.value.try_lock().ok())).map_err(drop)
        }

        pub(crate) fn lock(&self) -> Result<Guard<'_, T>, ()> {
            self.try_lock()
        }
    }

    impl<T> Deref for Guard<'_, T> {
        type Target = T;
        fn deref(&self) -> &T {
            self.1.as_ref().expect("held")
        }
    }

    impl<T> DerefMut for Guard<'_, T> {
        fn deref_mut(&mut self) -> &mut T {
            self.1.as_mut().expect("held")
        }
    }

    impl<T> Drop for Guard<'_, T> {
        fn drop(&mut self) {
            self.1 = None;
            self.0.store(false, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::inbox::{Events, Inbox};
    use crate::sync::{AtomicBool, Mutex, Ordering::SeqCst};
    use loom::thread;
    use std::future::{Future, poll_fn};
    use std::ops::ControlFlow;
    use std::pin::Pin;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
    use std::task::{Context, Poll, Waker};

    type Main = Pin<Box<dyn Future<Output = ()> + Send>>;

    /// A worker without devices: what [`crate::Worker`] is but for those.
    struct Model {
        inbox: Arc<Inbox<usize>>,
        runner: Mutex<Main>,
        /// The operation that the worker awaits first is done.
        answered: Arc<AtomicBool>,
        /// The sum of the events that it has handled.
        handled: Arc<AtomicUsize>,
    }

    impl Model {
        fn new(answered: bool) -> Arc<Self> {
            let (inbox, answered, handled) =
                (Inbox::new(), Arc::new(AtomicBool::new(answered)), Arc::<AtomicUsize>::default());
            let (mut events, awaited, sum) = (Events::new(inbox.clone()), answered.clone(), handled.clone());
            let main = async move {
                // As a commit of a turn without events.
                poll_fn(|_| if awaited.load(SeqCst) { Poll::Ready(()) } else { Poll::Pending }).await;
                loop {
                    while let Some(event) = events.next() {
                        sum.fetch_add(event, Relaxed);
                    }
                    events.idle(None).await;
                }
            };
            Arc::new(Self { inbox, runner: Mutex::new(Box::pin(main)), answered, handled })
        }

        /// As [`crate::Worker::kick`].
        fn kick(&self) {
            self.inbox.run(&self.runner, |main| {
                loop {
                    self.inbox.begin();
                    let _ = main.as_mut().poll(&mut Context::from_waker(Waker::noop()));
                    if !self.inbox.is_wanted() {
                        return ControlFlow::<()>::Continue(());
                    }
                }
            });
        }

        fn post(&self, event: usize) {
            self.inbox.leave(event);
            self.kick();
        }
    }

    fn check(model: impl Fn() + Send + Sync + 'static) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(2);
        builder.check(model);
    }

    /// Whatever is left and kicked for is handled when all who have kicked are done.
    #[test]
    fn nothing_that_is_left_is_missed() {
        check(|| {
            let model = Model::new(true);
            let others = [2, 4].map(|event| {
                let model = model.clone();
                thread::spawn(move || model.post(event))
            });
            model.post(8);
            others.into_iter().for_each(|other| other.join().unwrap());
            assert_eq!(model.handled.load(Relaxed), 14);
        });
    }

    /// A kick that finds the worker waiting for an operation is spent, but what it was for is not missed.
    #[test]
    fn an_event_that_comes_while_an_operation_is_awaited_is_not_missed() {
        check(|| {
            let model = Model::new(false);
            model.kick();
            let answer = {
                let model = model.clone();
                thread::spawn(move || {
                    model.answered.store(true, SeqCst);
                    model.kick();
                })
            };
            model.post(2);
            answer.join().unwrap();
            assert_eq!(model.handled.load(Relaxed), 2);
        });
    }
}
