//! Servers that have one device each, at an address of its own: what is the same whatever they speak.

use super::handover::{HandOver, HandOverMessage};
use crate::exports::Mapped;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;
use tracing::warn;
use udm_control::second::ExportEntry;
use udm_core::Registry;
use udm_export::{Export, Parameters, Served};

/// What they speak.
pub(crate) trait Speaks: Sized + 'static {
    /// What serves.
    type Server: Served + 'static;
    /// Where.
    type Address;
    /// The word of their messages to the next daemon.
    const KIND: &'static str;

    /// The address, and what a client is given for it, as users see them.
    fn shown(one: &One<Self>) -> (String, String);

    /// Lets go of the devices of clients that have hung up. Blocks for a second at most.
    fn reap(all: &[Arc<One<Self>>]);

    /// As [`HandOver::pause`]: all of them, or none.
    fn pause(all: &[Arc<One<Self>>], patience: Duration) -> Result<(), String>;

    /// The names of the devices that clients have open, each as often as that is so.
    fn open(one: &One<Self>) -> Vec<String>;

    /// Goes on after a pause.
    fn resume(one: &One<Self>);

    /// Ends all. Blocks at most so long.
    fn shut_down(all: &[Arc<One<Self>>], patience: Duration);

    /// As [`HandOver::give`].
    fn give(one: &One<Self>) -> Result<Vec<HandOverMessage>, String>;
}

/// One device at one address.
pub(crate) struct One<K: Speaks> {
    pub(crate) name: String,
    pub(crate) at: K::Address,
    pub(crate) server: K::Server,
    /// What its clients were told of the device; `None` until it was looked at.
    told: Mutex<Option<Parameters>>,
}

impl<K: Speaks> One<K> {
    /// As users see it.
    fn entry(&self) -> ExportEntry {
        let (address, uri) = K::shown(self);
        ExportEntry { name: self.name.clone(), transport: self.server.transport().to_owned(), address, uri }
    }

    fn follow(&self, registry: &Registry) {
        let Some(md) = registry.by_name(&self.name) else { return };
        let now = Mapped(md).parameters();
        let then = self.told.lock().unwrap_or_else(PoisonError::into_inner).replace(now);
        if let Some(then) = then.filter(|then| *then != now)
            && let Err(error) = self.server.changed(&then, &now)
        {
            warn!("{}: {error}", self.name);
        }
    }
}

type List<K> = Mutex<Vec<Arc<One<K>>>>;

/// All that speak it.
pub(crate) struct Servers<K: Speaks>(Arc<List<K>>);

impl<K: Speaks> Default for Servers<K> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

/// Where they listen, for who must not keep them alive.
pub(crate) struct Listening<K: Speaks>(Weak<List<K>>);

impl<K: Speaks> Listening<K> {
    /// The addresses now.
    pub(crate) fn addresses(&self) -> Vec<K::Address>
    where
        K::Address: Clone,
    {
        let all = self.0.upgrade().map(Servers);
        all.map_or_else(Vec::new, |all: Servers<K>| all.lock().iter().map(|one| one.at.clone()).collect())
    }
}

impl<K: Speaks> Servers<K> {
    fn lock(&self) -> MutexGuard<'_, Vec<Arc<One<K>>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All that there are: what may block is done without the lock, which others want meanwhile.
    pub(crate) fn all(&self) -> Vec<Arc<One<K>>> {
        self.lock().clone()
    }

    /// One more.
    pub(crate) fn push(&self, name: String, at: K::Address, server: K::Server) -> ExportEntry {
        let one = One { name, at, server, told: Mutex::default() };
        let entry = one.entry();
        self.lock().push(Arc::new(one));
        entry
    }

    /// Ends those that are chosen; returns how many there were. Blocks until their clients are gone, some seconds at
    /// most.
    pub(crate) fn remove_if(&self, chosen: impl Fn(&One<K>) -> bool) -> usize {
        let gone: Vec<_> = self.lock().extract_if(.., |one| chosen(one)).collect();
        K::shut_down(&gone, Duration::from_secs(5));
        gone.len()
    }

    /// As users see them.
    pub(crate) fn list(&self) -> Vec<ExportEntry> {
        self.lock().iter().map(|one| one.entry()).collect()
    }

    /// Where they listen, without keeping them.
    pub(crate) fn listening(&self) -> Listening<K> {
        Listening(Arc::downgrade(&self.0))
    }

    /// Follows the devices: clients are told of a size that has changed.
    pub(crate) fn sync(&self, registry: &Registry) {
        self.all().iter().for_each(|one| one.follow(registry));
    }

    /// Lets exports close the devices of clients that have hung up.
    pub(crate) fn reap_hangups(&self) {
        K::reap(&self.all());
    }

    /// Ends all.
    pub(crate) fn shut_down(&self, patience: Duration) {
        let all = std::mem::take(&mut *self.lock());
        K::shut_down(&all, patience);
    }
}

impl<K: Speaks> HandOver for Servers<K>
where
    Self: Send + Sync,
{
    fn kind(&self) -> &'static str {
        K::KIND
    }

    fn pause(&self, patience: Duration) -> Result<(), String> {
        K::pause(&self.all(), patience)
    }

    fn holds(&self) -> Vec<String> {
        self.all().iter().flat_map(|one| K::open(one)).collect()
    }

    fn resume(&self, _: &Registry) {
        self.all().iter().for_each(|one| K::resume(one));
    }

    fn give(&self) -> Result<Vec<HandOverMessage>, String> {
        let all = std::mem::take(&mut *self.lock());
        let given: Result<Vec<_>, _> = all.iter().map(|one| K::give(one)).collect();
        Ok(given?.into_iter().flatten().collect())
    }
}
