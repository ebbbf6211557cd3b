//! The domain's side of background work: what goes on though no thread that submits comes by.
//!
//! Channels know nothing of such work but one hook, [`Background`]. What implements it decides what is done and when; here is what it
//! needs of a domain: a channel, a look at channels whose threads are elsewhere, and a place to run in a simulated domain, which has no
//! threads.

use crate::channel::ChannelCore;
use crate::domain::Shared;
use crate::{Channel, Cx, Domain, Nanos};
use std::any::Any;
use std::io;
use std::sync::Arc;

/// What does a domain's background work. Each domain has one at most.
pub trait Background: Any + Send + Sync {
    /// Internal I/O has been left on a channel that is nobody's any more: until it is home somebody has to
    /// [poll it remotely](Domain::poll_remotely). Called outside of channels. Must not block.
    fn left_behind(&self);

    /// In a simulated domain: does what is due, whenever a channel is polled or waits. Gives the time of what is due next. Called
    /// outside of channels.
    fn turn(&self, domain: &Domain) -> Option<Nanos>;
}

impl Domain {
    /// The domain's background work, made at first use.
    ///
    /// # Panics
    /// When the domain has another kind of it already.
    pub fn background<T: Background + Default>(&self) -> &T {
        let background: &dyn Background = &**self.shared().background.get_or_init(|| Box::new(T::default()));
        let background: &dyn Any = background;
        background.downcast_ref().expect("a domain has one kind of background work")
    }

    /// A channel for the thread of the background work, which does not depend on how many other threads have taken. Fails when no
    /// descriptor is left.
    pub fn background_channel(&self) -> io::Result<Channel> {
        let id = self.shared().take_background_id()?;
        Ok(Channel::new(self.shared().clone(), self.shared().core_of(id)?))
    }

    /// Whether time is simulated: there are no threads, and [`Background::turn`] is called instead.
    pub fn is_simulated(&self) -> bool {
        self.shared().idle().is_some()
    }

    /// Makes sure of the channel that [`visit_background`](Self::visit_background) enters.
    pub fn open_background(&self) -> io::Result<()> {
        let shared = self.shared();
        if shared.background_id.get().is_none() {
            let id = shared.take_background_id()?;
            ChannelCore::open(shared.core_of(id)?);
            if shared.background_id.set(id).is_err() {
                shared.free(id);
            }
        }
        Ok(())
    }

    /// Polls a channel that is no thread's, and runs `work` inside it: how a simulated domain, which has no threads, does background work.
    /// `None` when it was not [opened](Self::open_background), or another thread is inside. Not from inside a channel; `work` must not
    /// block.
    pub fn visit_background<T>(&self, work: impl FnOnce(&Cx<'_>) -> T) -> Option<T> {
        let core = self.shared().core(*self.shared().background_id.get()?);
        core.lock.enter_remotely(|| {
            core.poll();
            work(&Cx::new(core))
        })
    }

    /// Polls the channels with internal I/O out, or `all`, whose threads are elsewhere. Not from inside a channel.
    pub fn poll_remotely(&self, all: bool) {
        for core in self.shared().cores().filter(|core| all || core.has_internal()) {
            core.poll_remotely();
        }
    }

    /// Whether internal I/O is out, on any channel.
    pub fn has_internal(&self) -> bool {
        self.shared().cores().any(ChannelCore::has_internal)
    }
}

impl Shared {
    /// See [`Background::left_behind`].
    pub(crate) fn leave_behind(&self) {
        if let Some(background) = self.background.get() {
            background.left_behind();
        }
    }

    /// In a simulated domain: background work has its turn. Gives the time of what is due next. Not from inside a channel.
    pub(crate) fn simulate_background(self: &Arc<Self>) -> Option<Nanos> {
        self.idle()?;
        if self.cpu_work.run_queued() {
            return Some(self.clock().now());
        }
        self.background.get()?.turn(&Domain::of(self))
    }
}
