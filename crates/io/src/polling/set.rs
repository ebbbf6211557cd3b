//! The queues of a device that can be polled.

use super::queue::{DeviceQueue, Driver};
use crate::Cx;
use std::io;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

/// How many queues a device can have.
pub(crate) const QUEUES_MAX: u32 = 1024;

/// How often queues of any device were changed.
static CHANGES: AtomicU32 = AtomicU32::new(0);

/// How often queues of any device of the process were changed: a bio whose parts were queued before and after is looked
/// for everywhere.
#[inline]
pub(super) fn changes() -> u32 {
    CHANGES.load(Ordering::Relaxed)
}

/// Makes the driver of a queue.
type Make = dyn Fn() -> io::Result<Arc<DeviceQueue>> + Send + Sync;

/// The queues of one device. Their number may be changed at any time: those out of use stay until the set is dropped,
/// since bios may be on them.
pub struct QueueSet {
    /// How many are in use.
    len: AtomicU32,
    slots: OnceLock<Box<[OnceLock<Arc<DeviceQueue>>]>>,
    make: Box<Make>,
}

impl QueueSet {
    /// A set of `len` queues, each of which is made when it is first used. One that cannot be made leaves its channels
    /// to interrupts.
    pub fn new<D: Driver>(len: u32, make: impl Fn() -> io::Result<D> + Send + Sync + 'static) -> Arc<Self> {
        let make = move || -> io::Result<Arc<DeviceQueue>> { Ok(Arc::new(DeviceQueue::new(make()?))) };
        Arc::new(Self { len: AtomicU32::new(len.min(QUEUES_MAX)), slots: OnceLock::new(), make: Box::new(make) })
    }

    /// How many are in use.
    #[inline]
    pub fn len(&self) -> u32 {
        self.len.load(Ordering::Relaxed)
    }

    /// Whether none is in use: then it cannot be polled for.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Changes how many are in use. Bios on the others are polled for until they are done.
    pub fn set_len(&self, len: u32) {
        self.len.store(len.min(QUEUES_MAX), Ordering::Relaxed);
        CHANGES.fetch_add(1, Ordering::Relaxed);
    }

    /// The number of the queue that a channel maps to; `None` when there is none.
    #[inline]
    pub(super) fn index_of(&self, cx: &Cx<'_>) -> Option<u32> {
        let len = self.len();
        match len {
            0 => None,
            1 => Some(0),
            _ => Some(cx.id() as u32 % len),
        }
    }

    /// The queue with a number that [`index_of`](Self::index_of) has given; `None` when it cannot be made.
    #[inline]
    pub(super) fn queue(&self, index: u32) -> Option<&Arc<DeviceQueue>> {
        match self.slots.get().and_then(|slots| slots[index as usize].get()) {
            Some(queue) => Some(queue),
            None => self.make(index),
        }
    }

    #[cold]
    fn make(&self, index: u32) -> Option<&Arc<DeviceQueue>> {
        let slots = self.slots.get_or_init(|| (0..QUEUES_MAX).map(|_| OnceLock::new()).collect());
        let made = (self.make)().inspect_err(|error| tracing::error!(%error, "a polled queue cannot be made")).ok()?;
        Some(slots[index as usize].get_or_init(|| made))
    }

    /// Every queue that was ever used.
    pub(super) fn each(&self) -> impl Iterator<Item = &Arc<DeviceQueue>> {
        self.slots.get().into_iter().flat_map(|slots| slots.iter()).filter_map(OnceLock::get)
    }
}
