//! Kicks against runs, in every order that the memory model allows. `cargo xtask loom` runs these; they drive the code
//! that ships.

#[cfg(test)]
mod tests {
    use crate::inbox::{Events, Inbox, Running};
    use crate::slot::slot;
    use crate::sync::{AtomicBool, AtomicUsize, Ordering::*};
    use loom::thread;
    use std::future::{Future, poll_fn};
    use std::pin::Pin;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize as Sum, Ordering::Relaxed as Plainly};
    use std::task::{Context, Poll, Waker};

    /// An event above this has something sent that is back at once, as the event that is left of it.
    const SENDS: usize = 100;

    /// A worker without devices: otherwise like [`crate::Worker`].
    struct Model {
        inbox: Arc<Inbox<usize>>,
        /// The operation that the worker awaits first is done.
        answered: Arc<AtomicBool>,
        /// The sum of the events that it has handled, and the last of them.
        handled: Arc<Sum>,
        order: Arc<Sum>,
        /// What is to be sent.
        outbox: Arc<Sum>,
        /// As in [`crate::Worker`].
        told: AtomicBool,
        /// Something is out that is to be looked after. Written by the worker.
        waits: Arc<AtomicBool>,
        /// The work item was kicked.
        item: AtomicUsize,
    }

    impl Model {
        fn new(answered: bool) -> Arc<Self> {
            let inbox = Inbox::new(0);
            let answered = Arc::new(AtomicBool::new(answered));
            let waits = Arc::new(AtomicBool::new(false));
            let [handled, order, outbox] = [(); 3].map(|()| Arc::<Sum>::default());
            let (mut events, awaited, sum, last) =
                (Events::new(inbox.clone()), answered.clone(), handled.clone(), order.clone());
            let (sent, out) = (outbox.clone(), waits.clone());
            let main = async move {
                // Like a commit of a turn without events.
                poll_fn(|_| if awaited.load(Acquire) { Poll::Ready(()) } else { Poll::Pending }).await;
                loop {
                    while let Some(event) = events.next() {
                        sent.fetch_add(event / SENDS * (event % SENDS), Plainly);
                        sum.fetch_add(event % SENDS, Plainly);
                        last.store(event, Plainly);
                        out.store(true, Relaxed);
                    }
                    events.idle(None).await;
                }
            };
            let mut held = inbox.run.kick().expect("nobody runs it yet");
            held.value().main = Some(Box::pin(main));
            held.unlock().map_err(drop).expect("nobody kicks it yet");
            let (told, item) = (AtomicBool::new(false), AtomicUsize::new(0));
            Arc::new(Self { inbox, answered, handled, order, outbox, told, waits, item })
        }

        /// As [`crate::Worker`]'s `drive`.
        fn drive(&self, mut held: Running<'_, usize>, tells: bool) {
            let mut tell = false;
            loop {
                self.inbox.begin(&mut held);
                let main = held.value().main.as_mut().expect("it does not end");
                let _ = main.as_mut().poll(&mut Context::from_waker(Waker::noop()));
                let sent = self.outbox.swap(0, Plainly);
                if sent != 0 {
                    // As a copy that is done at once.
                    self.inbox.leave(sent);
                    assert!(self.inbox.run.kick().is_none(), "this thread runs it already");
                }
                if tells && self.waits.load(Relaxed) && !self.told.load(Relaxed) {
                    self.told.store(true, Relaxed);
                    tell = true;
                }
                match held.unlock() {
                    Ok(()) => break,
                    Err(kicked) => held = kicked,
                }
            }
            if tell {
                self.item.store(1, SeqCst);
            }
        }

        fn kick(&self) {
            if let Some(held) = self.inbox.run.kick() {
                self.drive(held, true);
            }
        }

        fn post(&self, event: usize) {
            if let Some(held) = self.inbox.post(event) {
                self.drive(held, true);
            }
        }

        /// As [`crate::Worker`]'s `do_work`: whether it looks again by itself.
        fn do_work(&self) -> bool {
            self.told.store(false, Relaxed);
            if let Some(held) = self.inbox.run.kick() {
                self.drive(held, false);
            }
            self.waits.load(Relaxed)
        }
    }

    fn check(model: impl Fn() + Send + Sync + 'static) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(2);
        builder.check(model);
    }

    /// Every event that is left and kicked for is handled when all kickers are done.
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
            assert_eq!(model.handled.load(Plainly), 14);
        });
    }

    /// A kick that finds the worker waiting for an operation is used up, but its event is not missed.
    #[test]
    fn an_event_that_comes_while_an_operation_is_awaited_is_not_missed() {
        check(|| {
            let model = Model::new(false);
            model.kick();
            let answer = {
                let model = model.clone();
                thread::spawn(move || {
                    model.answered.store(true, Release);
                    model.kick();
                })
            };
            model.post(2);
            answer.join().unwrap();
            assert_eq!(model.handled.load(Plainly), 2);
        });
    }

    /// What the thread that runs it leaves from within is handled, whoever else kicks meanwhile.
    #[test]
    fn nothing_that_is_left_from_within_a_run_is_missed() {
        check(|| {
            let model = Model::new(true);
            let other = {
                let model = model.clone();
                thread::spawn(move || model.post(2))
            };
            model.post(SENDS + 8);
            other.join().unwrap();
            assert_eq!(model.handled.load(Plainly), 18);
        });
    }

    /// A thread's events stay in their order, whether they lie near or beside.
    #[test]
    fn events_of_a_thread_stay_in_their_order() {
        check(|| {
            let model = Model::new(false);
            let other = {
                let model = model.clone();
                thread::spawn(move || {
                    model.answered.store(true, Release);
                    model.kick();
                })
            };
            model.post(1);
            model.inbox.leave(2);
            model.post(3);
            other.join().unwrap();
            assert_eq!((model.handled.load(Plainly), model.order.load(Plainly)), (6, 3));
        });
    }

    /// A run that is broken off lets nobody in before its end, and leaves what it has not done to the next.
    #[test]
    fn a_run_that_is_put_off_is_gone_on_with() {
        check(|| {
            let model = Model::new(true);
            let other = {
                let model = model.clone();
                thread::spawn(move || model.post(2))
            };
            if let Some(mut held) = model.inbox.post(4) {
                model.inbox.begin(&mut held);
                held.put_off();
                // As the workqueue does, or a channel that has bios again.
                model.kick();
            }
            other.join().unwrap();
            assert_eq!(model.handled.load(Plainly), 6);
        });
    }

    /// What an operation leaves is touched by one at a time, and seen by the one that awaits it.
    #[test]
    fn a_result_is_handed_over() {
        check(|| {
            let (filler, mut awaited) = slot();
            let other = thread::spawn(move || filler.fill(7));
            let cx = &mut Context::from_waker(Waker::noop());
            let early = Pin::new(&mut awaited).poll(cx);
            other.join().unwrap();
            let late = Pin::new(&mut awaited).poll(cx);
            assert!([early, late].contains(&Poll::Ready(7)), "{early:?}, {late:?}");
        });
    }

    /// Whatever the workqueue finds when it looks: as long as something is out, it looks again, or has been kicked.
    #[test]
    fn what_the_worker_waits_for_is_looked_after() {
        check(|| {
            let model = Model::new(true);
            let other = {
                let model = model.clone();
                thread::spawn(move || model.post(2))
            };
            // It was kicked for something else.
            model.told.store(true, Relaxed);
            let again = model.do_work();
            other.join().unwrap();
            assert!(again || model.item.load(SeqCst) == 1, "nobody looks after it");
        });
    }
}
