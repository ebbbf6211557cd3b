//! Whether a thread waits for another.

use crate::until;
use rustix::thread::gettid;
use std::sync::mpsc::{Receiver, sync_channel};

/// A thread of this process, known by what it says of itself.
#[derive(Debug)]
pub struct Sleeper(Receiver<i32>);

/// What a thread calls right before something that it is expected to wait in.
#[derive(Debug)]
pub struct GoingToSleep(std::sync::mpsc::SyncSender<i32>);

impl Sleeper {
    /// The two ends: one for the thread, one for who waits until it sleeps.
    #[must_use]
    pub fn new() -> (GoingToSleep, Self) {
        let (tell, told) = sync_channel(1);
        (GoingToSleep(tell), Self(told))
    }

    /// Waits until the thread has said that it is about to wait, and sleeps.
    ///
    /// # Panics
    /// When it never does.
    #[track_caller]
    pub fn until_asleep(self) {
        let thread = self.0.recv().expect("the thread says so");
        let stat = format!("/proc/self/task/{thread}/stat");
        // proc(5): the state comes after the name in parentheses.
        let is_asleep = || std::fs::read_to_string(&stat).is_ok_and(|text| text.contains(") S "));
        until("the thread sleeps", is_asleep);
    }
}

impl GoingToSleep {
    /// Says so.
    pub fn now(self) {
        let _ = self.0.send(gettid().as_raw_nonzero().get());
    }
}
