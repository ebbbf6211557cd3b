//! What the rule of the kicks stands on: the system's atomics, or with `--cfg loom` those of the model checker (`models.rs`).

#[cfg(not(loom))]
pub(crate) use std::sync::{
    Mutex,
    atomic::{AtomicBool, Ordering, fence},
};

#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicBool, Ordering, fence};
#[cfg(loom)]
pub(crate) use try_lock::Mutex;

/// The model checker's own mutex lets nobody in between the last access under it and its end, and holds back who tries it.
#[cfg(loom)]
mod try_lock {
    use super::{AtomicBool, Ordering};
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
