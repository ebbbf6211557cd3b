//! Other daemons that want to go on in the place of this one: those that are asked whether they can, and the one that
//! has said so.

use super::devices::Devices;
use super::handover::{Giving, Link, first_words};
use super::socket::Peer;
use super::stop::Ending;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tracing::{info, warn};

/// What is known of them.
#[derive(Default)]
pub(crate) struct Replacement {
    /// One that is ready to go on.
    ready: Mutex<Option<Giving>>,
    /// The ways to those that are still asked.
    asking: Mutex<Vec<Arc<UnixStream>>>,
    under_way: AtomicBool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Replacement {
    /// Another daemon is about to go on.
    pub(crate) fn is_under_way(&self) -> bool {
        self.under_way.load(Ordering::Acquire)
    }

    /// It does not, and this one goes on.
    pub(crate) fn called_off(&self) {
        self.under_way.store(false, Ordering::Release);
    }

    /// Another daemon wants to go on here. Nothing stops before it has understood everything. Blocks until it answers,
    /// or this one stops.
    pub(crate) fn prepare(&self, devices: &Devices, ending: &Ending, stream: &UnixStream, peer: Peer) {
        info!("process {} is to go on in the place of this one", peer.pid);
        match self.ask(devices, ending, stream, peer) {
            Ok(giving) => {
                // Of two that want it at once the first is told by its end that it does not get it.
                *lock(&self.ready) = Some(giving);
                self.under_way.store(true, Ordering::Release);
                ending.stop().set();
            }
            Err(why) => warn!("process {} does not go on in the place of this one: {why}", peer.pid),
        }
    }

    fn ask(&self, devices: &Devices, ending: &Ending, stream: &UnixStream, peer: Peer) -> Result<Giving, String> {
        let copy = || stream.try_clone().map_err(|e| e.to_string());
        let (way, held) = (copy()?, Arc::new(copy()?));
        lock(&self.asking).push(held.clone());
        // A stop after this check hangs up.
        let result = match ending.stop().is_set() {
            true => Err("this one stops already".into()),
            false => first_words(devices, Link::new(way), peer.pid),
        };
        lock(&self.asking).retain(|other| !Arc::ptr_eq(other, &held));
        result
    }

    /// One that does not answer keeps nobody from ending, nor from giving everything to another.
    pub(crate) fn hang_up_on_asked(&self) {
        for stream in &*lock(&self.asking) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// The one that is ready, if there is one.
    pub(crate) fn take_ready(&self) -> Option<Giving> {
        let giving = lock(&self.ready).take();
        if giving.is_some() {
            self.under_way.store(true, Ordering::Release);
        }
        giving
    }
}
