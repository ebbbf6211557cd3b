//! A target as its constructor hands it over: what it does, and what is known of it for as long as it lives.

use crate::Target;
use std::sync::Arc;
use udm_base::{Sector, Sectors, Stripes};
use udm_io::{BlockDevice, Memory};

/// A device beneath, as its target uses it.
#[derive(Clone)]
pub struct TargetDevice {
    /// The device.
    pub dev: Arc<dyn BlockDevice>,
    /// Where the target begins to use it.
    pub start: Sector,
    /// How much of it.
    pub len: Sectors,
}

/// A target, the devices beneath it, and what core has to know to serve it. None of this changes as long as the target
/// lives, so that core asks for it once and not for each bio.
pub struct NewTarget {
    pub(crate) target: Box<dyn Target>,
    pub(crate) capabilities: Capabilities,
}

/// What is known of a target beside its code: see [`NewTarget`] for what each says.
#[derive(Default)]
pub(crate) struct Capabilities {
    pub(crate) devices: Vec<TargetDevice>,
    pub(crate) kept: Vec<Arc<dyn BlockDevice>>,
    layout: Layout,
    pub(crate) max_io_len: Option<Sectors>,
    pub(crate) in_place: bool,
    pub(crate) synchronous: bool,
    pub(crate) takes_back: bool,
    pub(crate) whole_discards: bool,
    pub(crate) sees_flushes: bool,
    pub(crate) flushes_beneath: bool,
    pub(crate) transient: bool,
}

/// Where the target's sectors lie, as far as core knows.
#[derive(Default)]
enum Layout {
    /// The target's `map` alone knows.
    #[default]
    Opaque,
    /// One after the other on its one device.
    Run,
    /// Spread over its devices.
    Striped(Stripes),
    Memory(Arc<Memory>),
}

impl NewTarget {
    /// One without devices that gets clones of bios, split at its borders, and is not told of flushes.
    pub fn new(target: impl Target) -> Self {
        Self { target: Box::new(target), capabilities: Capabilities::default() }
    }

    fn with(mut self, change: impl FnOnce(&mut Capabilities)) -> Self {
        change(&mut self.capabilities);
        self
    }

    /// The devices that bios are mapped to, one entry for each range used. Core stacks their limits, sends them
    /// flushes, and lists them as dependencies.
    #[must_use]
    pub fn maps_to(self, devices: impl IntoIterator<Item = TargetDevice>) -> Self {
        self.with(|c| c.devices.extend(devices))
    }

    /// Devices that it uses by itself: held, and listed as dependencies, but bios are neither mapped nor flushed to
    /// them, and their limits do not count. Metadata, or an origin that is only read.
    #[must_use]
    pub fn keeps(self, devices: impl IntoIterator<Item = Arc<dyn BlockDevice>>) -> Self {
        self.with(|c| c.kept.extend(devices))
    }

    /// The whole target is one run on a device, for all operations alike: it can be compiled away.
    #[must_use]
    pub fn shifts_to(self, device: TargetDevice) -> Self {
        self.in_place().with(|c| (c.devices, c.layout) = (vec![device], Layout::Run))
    }

    /// The whole target is spread over devices, of which it uses as much each, by nothing but arithmetic: it can be
    /// compiled too.
    #[must_use]
    pub fn stripes_over(self, devices: impl IntoIterator<Item = TargetDevice>, stripes: Stripes) -> Self {
        let devices = devices.into_iter().collect();
        self.in_place().split_at(stripes.chunk()).with(|c| (c.devices, c.layout) = (devices, Layout::Striped(stripes)))
    }

    /// The target is memory, sector for sector, and nothing else: reads and writes that need no splitting go there
    /// without a call of `map`. Both end with the process.
    #[must_use]
    pub fn backed_by_memory(self, memory: Arc<Memory>) -> Self {
        self.ends_at_once().transient().with(|c| c.layout = Layout::Memory(memory))
    }

    /// `map` may be given the submitter's own bio instead of a clone: all that it changes of one that it sends on is
    /// the sector.
    #[must_use]
    pub fn in_place(self) -> Self {
        self.with(|c| c.in_place = true)
    }

    /// `map` always answers [`Map::Ended`](crate::Map::Ended), so that nothing of it is ever in flight.
    #[must_use]
    pub fn ends_at_once(self) -> Self {
        self.with(|c| c.synchronous = true)
    }

    /// `map` may answer [`Map::WithEndIo`](crate::Map::WithEndIo), [`Map::Delayed`](crate::Map::Delayed) or
    /// [`Map::Work`](crate::Map::Work). Costs two frames on each bio.
    #[must_use]
    pub fn takes_back(self) -> Self {
        self.with(|c| c.takes_back = true)
    }

    /// Bios are split at multiples of this, counted from the target's start.
    #[must_use]
    pub fn split_at(self, len: Sectors) -> Self {
        self.with(|c| c.max_io_len = Some(len))
    }

    /// Discards come whole, not [split](Self::split_at): the target cuts them itself.
    #[must_use]
    pub fn whole_discards(self) -> Self {
        self.with(|c| c.whole_discards = true)
    }

    /// Flushes come to `map` too, besides those that core sends to the devices beneath.
    #[must_use]
    pub fn sees_flushes(self) -> Self {
        self.with(|c| c.sees_flushes = true)
    }

    /// Flushes come to `map`, and to nobody else: the target sees to it that they reach the devices beneath. It has to
    /// serve FUA by itself as well, and to say so in its limits.
    #[must_use]
    pub fn flushes_beneath(self) -> Self {
        self.sees_flushes().with(|c| c.flushes_beneath = true)
    }

    /// It keeps in memory what its data cannot be found without, so that both end with the process.
    #[must_use]
    pub fn transient(self) -> Self {
        self.with(|c| c.transient = true)
    }
}

impl Capabilities {
    /// The device that the whole target is one run of.
    pub(crate) fn run(&self) -> Option<&TargetDevice> {
        matches!(self.layout, Layout::Run).then(|| &self.devices[0])
    }

    /// How the target is spread over its devices.
    pub(crate) fn stripes(&self) -> Option<Stripes> {
        if let Layout::Striped(stripes) = self.layout { Some(stripes) } else { None }
    }

    /// The memory that the target is.
    pub(crate) fn memory(&self) -> Option<&Memory> {
        if let Layout::Memory(memory) = &self.layout { Some(memory) } else { None }
    }

    /// Where a sector lies beneath, and how many sectors follow it there, if arithmetic tells.
    pub(crate) fn locate(&self, at: Sectors) -> Option<(&TargetDevice, Sector, Sectors)> {
        match self.layout {
            Layout::Opaque | Layout::Memory(_) => None,
            Layout::Run => self.devices.first().map(|d| (d, d.start + at, d.len - at)),
            Layout::Striped(stripes) => {
                let (leg, into) = stripes.locate(at);
                let device = &self.devices[leg];
                Some((device, device.start + into, stripes.left_of_chunk(at)))
            }
        }
    }

    /// Whether the target's bios can be polled for: those that it does not end at once.
    pub(crate) fn can_poll(&self) -> bool {
        // A bio that waits for a time is on no queue.
        let beneath = !self.takes_back && !self.devices.is_empty() && self.devices.iter().all(|d| d.dev.can_poll());
        beneath || self.memory().is_some()
    }
}
