//! A volume: how its bios find their data block, as long as the mapping cache knows it.

use super::flight;
use super::mapping::{Known, Mappings, Place};
use super::pool::{Gate, Pool};
use super::worker::Event;
use std::any::Any;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use udm_base::{Sector, Sectors};
use udm_core::{Map, ZeroSkips};
use udm_io::{Bio, BlockDevice, Cx, DeviceId, Limits, Op, OpFlags, Status};

/// Whether what a device of the pool was told is durable.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(super) enum Durability {
    /// Its mappings are as they were committed.
    Committed,
    /// They have changed since.
    Changed,
    /// They had changed, and the changes are lost. It stays so until nobody has the device open.
    Lost,
}

/// A device of the pool that is open: what all tables with it share.
pub(super) struct ThinDevice {
    pub(super) pool: Arc<Pool>,
    pub(super) id: u32,
    pub(super) mappings: Mappings,
    durability: AtomicU8,
}

impl ThinDevice {
    pub(super) fn new(pool: Arc<Pool>, id: u32, blocks: u64) -> Arc<Self> {
        let mappings = pool.cache.volume(blocks);
        Arc::new(Self { pool, id, mappings, durability: AtomicU8::new(Durability::Committed as u8) })
    }

    #[inline]
    pub(super) fn durability(&self) -> Durability {
        match self.durability.load(Ordering::Acquire) {
            0 => Durability::Committed,
            1 => Durability::Changed,
            _ => Durability::Lost,
        }
    }

    /// By the worker only.
    pub(super) fn set_durability(&self, to: Durability) {
        if self.durability() != Durability::Lost {
            self.durability.store(to as u8, Ordering::Release);
        }
    }
}

impl Drop for ThinDevice {
    fn drop(&mut self) {
        // The worker hears of it with its next event.
        self.pool.leave(Event::Closed(self.id));
    }
}

/// An origin outside of the pool.
pub(super) struct Origin {
    pub(super) dev: Arc<dyn BlockDevice>,
    /// Its size when the volume was resumed, in sectors.
    pub(super) sectors: AtomicU64,
}

impl Origin {
    pub(super) fn end(&self) -> Sector {
        Sector::new(self.sectors.load(Ordering::Acquire))
    }
}

/// What the worker has found out for a bio, which carries it to its volume: what is known need not be in the mapping
/// cache to be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Found {
    /// Where its block lies, or that it lies nowhere.
    pub(super) known: Known,
    /// A commit was made since the bio came, when its block was there already.
    pub(super) committed: bool,
    /// [`Mappings::changes`] at that time: later, what was found may be so no more. Below 2^52, which a million changes
    /// a second reach after 140 years.
    pub(super) changes: u64,
}

impl Found {
    const UNMAPPED: u64 = 1;
    const MAPPED: u64 = 2;
    const SHARED: u64 = 4;
    const COMMITTED: u64 = 8;
    const DATA: u32 = 4;
    /// Where the upper bits of the changes begin: blocks are below 2^40.
    const CHANGES: u32 = Self::DATA + 40;

    /// As the words of a bio.
    fn words(self) -> (u64, u32) {
        let known = match self.known {
            Known::Unknown => 0,
            Known::Unmapped => Self::UNMAPPED,
            Known::At(Place { data, shared }) => {
                Self::MAPPED | data << Self::DATA | if shared { Self::SHARED } else { 0 }
            }
        };
        let committed = if self.committed { Self::COMMITTED } else { 0 };
        (known | committed | (self.changes >> 32) << Self::CHANGES, self.changes as u32)
    }

    fn of((word, note): (u64, u32)) -> Self {
        let known = match word & (Self::UNMAPPED | Self::MAPPED) {
            Self::UNMAPPED => Known::Unmapped,
            Self::MAPPED => {
                let data = word >> Self::DATA & ((1 << (Self::CHANGES - Self::DATA)) - 1);
                Known::At(Place { data, shared: word & Self::SHARED != 0 })
            }
            _ => Known::Unknown,
        };
        let changes = word >> Self::CHANGES << 32 | u64::from(note);
        Self { known, committed: word & Self::COMMITTED != 0, changes }
    }

    fn write(self, bio: &mut Bio) {
        let (word, note) = self.words();
        bio.set_word(word);
        bio.set_note(note);
    }

    fn read(bio: &Bio) -> Self {
        Self::of((bio.word(), bio.note()))
    }
}

/// One table's volume.
pub(super) struct Volume {
    this: Weak<Volume>,
    pub(super) device: Arc<ThinDevice>,
    /// The pool's mapped device: for what core has to emulate where the data device lacks it.
    pub(super) pool_device: Arc<dyn BlockDevice>,
    pub(super) origin: Option<Origin>,
    skipped: (AtomicU64, AtomicU64),
    /// Bios that wait are given back: the device is being suspended with `noflush`.
    pub(super) requeue: std::sync::atomic::AtomicBool,
}

impl Volume {
    pub(super) fn new(
        device: Arc<ThinDevice>,
        pool_device: Arc<dyn BlockDevice>,
        origin: Option<Arc<dyn BlockDevice>>,
    ) -> Arc<Self> {
        let origin = origin.map(|dev| Origin { sectors: AtomicU64::new(dev.sectors().get()), dev });
        Arc::new_cyclic(|this| Self {
            this: this.clone(),
            device,
            pool_device,
            origin,
            skipped: Default::default(),
            requeue: Default::default(),
        })
    }

    /// The pool.
    #[inline]
    pub(super) fn pool(&self) -> &Arc<Pool> {
        &self.device.pool
    }

    /// Maps a bio that begins `at` sectors into the volume, as far as it can be told here; else it is the worker's.
    #[inline]
    pub(super) fn map(&self, cx: &Cx<'_>, bio: Bio, at: Sectors) -> Map<'_> {
        self.map_knowing(cx, bio, at, None)
    }

    /// As [`map`](Self::map), with what the worker has found.
    // Inlined, so that a device that is answered stays in registers: by memory it is written as two words and read as
    // one of sixteen bytes, which the CPU forwards from no store. The load then waits for all stores before, those of
    // copies too.
    #[inline(always)]
    fn map_knowing(&self, cx: &Cx<'_>, mut bio: Bio, at: Sectors, found: Option<Found>) -> Map<'_> {
        let pool = &*self.device.pool;
        if pool.gate() != Gate::Open {
            return self.gated(cx, bio, at);
        }
        let op = bio.op();
        if !op.has_payload() {
            return self.without_payload(cx, bio, at, found);
        }
        let (block, into) = pool.block.split(at.get());
        // Before the look-up: see the module.
        let epoch = pool.enter(cx);
        let known = self.known(block, found);
        if let Known::At(place) = known
            && (op == Op::Read || !place.shared)
            && let Some(to) = self.way(&bio, place.data, found)
        {
            flight::enter(&mut bio, pool, epoch);
            bio.set_sector(pool.sector_of(place.data) + Sectors::new(into));
            return Map::Remapped(bio, to);
        }
        pool.leave_epoch(cx, epoch);
        match known {
            Known::Unmapped if op == Op::Read => self.read_nothing(bio, at),
            _ => self.defer(cx, bio, at),
        }
    }

    /// What is known of a block, by a bio that has entered an epoch: what the mapping cache says, or else what the
    /// worker has found, as long as nothing that was mapped has changed since. Who changes it counts that before the
    /// drain that would wait for this bio, had it entered before.
    #[inline]
    fn known(&self, block: u64, found: Option<Found>) -> Known {
        match (self.device.mappings.lookup(block), found) {
            (Known::Unknown, Some(found)) if found.changes == self.device.mappings.changes() => found.known,
            (known, _) => known,
        }
    }

    /// Which device takes a bio to its data block; none, when a commit has to come first.
    #[inline]
    fn way(&self, bio: &Bio, data: u64, found: Option<Found>) -> Option<&dyn BlockDevice> {
        if bio.op() == Op::Read {
            return Some(&*self.pool().data);
        }
        if found.is_none() && self.pool().unmaps.load(Ordering::Relaxed) && self.may_unmap(bio) {
            return None;
        }
        if !bio.flags().contains(OpFlags::FUA) {
            return Some(&*self.pool().data);
        }
        let durable = self.device.durability() == Durability::Committed || self.was_committed_at(data, found);
        durable.then_some(&*self.pool_device)
    }

    /// Whether the worker has seen to it that the bio's block lies there durably.
    #[cold]
    fn was_committed_at(&self, data: u64, found: Option<Found>) -> bool {
        found.is_some_and(|found| {
            let there = matches!(found.known, Known::At(place) if place.data == data);
            found.committed && there && found.changes == self.device.mappings.changes()
        })
    }

    /// Whether a write is for the worker, because it is zeroes over a whole block.
    #[cold]
    fn may_unmap(&self, bio: &Bio) -> bool {
        bio.sectors() == self.pool().block_len() && bio.is_zero()
    }

    /// Flushes, discards and zeroes.
    #[cold]
    fn without_payload(&self, cx: &Cx<'_>, mut bio: Bio, at: Sectors, found: Option<Found>) -> Map<'_> {
        let pool = &*self.device.pool;
        match bio.op() {
            // A commit would flush the data device, too; without one that is all there is to do.
            Op::Flush if self.device.durability() == Durability::Committed => Map::Remapped(bio, &*self.pool_device),
            Op::WriteZeroes => {
                // One that the worker has sent back is to be written, within the block that it has looked up.
                let (block, into) = pool.block.split(at.get());
                let epoch = pool.enter(cx);
                let place = match self.known(block, found) {
                    Known::At(place) if !place.shared && self.was_committed_at(place.data, found) => place,
                    _ => {
                        pool.leave_epoch(cx, epoch);
                        return self.defer(cx, bio, at);
                    }
                };
                flight::enter(&mut bio, pool, epoch);
                bio.set_sector(pool.sector_of(place.data) + Sectors::new(into));
                Map::Remapped(bio, &*self.pool_device)
            }
            _ => self.defer(cx, bio, at),
        }
    }

    /// A read of a block that has no data of its own.
    fn read_nothing(&self, mut bio: Bio, at: Sectors) -> Map<'_> {
        let from = at.from_start();
        let Some(origin) = self.origin.as_ref().filter(|origin| from < origin.end()) else {
            bio.fill(0);
            return Map::Ended(bio, Status::Ok);
        };
        let left = origin.end() - from;
        if bio.sectors() > left {
            bio.fill(0);
            bio.truncate(left);
        }
        bio.set_sector(from);
        Map::Remapped(bio, &*origin.dev)
    }

    #[cold]
    fn gated(&self, cx: &Cx<'_>, bio: Bio, at: Sectors) -> Map<'_> {
        match self.pool().gate() {
            Gate::Failed => Map::Ended(bio, Status::Io),
            _ => self.defer(cx, bio, at),
        }
    }

    /// Leaves a bio to the worker. Its sector counts from the volume's start from here on; its frames put it back.
    fn defer(&self, cx: &Cx<'_>, mut bio: Bio, at: Sectors) -> Map<'_> {
        let Some(me) = self.this.upgrade() else { return Map::Ended(bio, Status::Gone) };
        bio.set_sector(at.from_start());
        self.pool().post(cx, Event::Bio(me, bio));
        Map::Kept
    }

    /// What was found out just now, by the worker.
    pub(super) fn found(&self, known: Known, committed: bool) -> Found {
        Found { known, committed, changes: self.device.mappings.changes() }
    }

    /// Has a bio that was deferred mapped again on its own channel, with what was found.
    pub(super) fn again(&self, mut bio: Bio, found: Found) -> Bio {
        found.write(&mut bio);
        flight::point(&mut bio, self);
        bio
    }

    /// Counts a write that was forgotten.
    pub(super) fn skipped(&self, bytes: u64) {
        self.skipped.0.fetch_add(1, Ordering::Relaxed);
        self.skipped.1.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(super) fn zero_skips(&self) -> ZeroSkips {
        ZeroSkips { bios: self.skipped.0.load(Ordering::Relaxed), bytes: self.skipped.1.load(Ordering::Relaxed) }
    }
}

/// Where deferred bios come back to: their own channel calls it, and so maps them as it would have at first.
impl BlockDevice for Volume {
    fn submit(&self, cx: &Cx<'_>, bio: Bio) -> Option<Bio> {
        let at = bio.sector() - Sector::ZERO;
        let found = Found::read(&bio);
        match self.map_knowing(cx, bio, at, Some(found)) {
            Map::Remapped(mut bio, to) => {
                flight::point(&mut bio, to);
                Some(bio)
            }
            Map::Ended(bio, status) => {
                cx.end(bio, status);
                None
            }
            Map::Requeue(bio) => {
                cx.end(bio, Status::Requeue);
                None
            }
            Map::Kept => None,
            Map::WithEndIo(..) | Map::Delayed(..) | Map::Work(..) => unreachable!("a volume takes none back"),
        }
    }

    fn sectors(&self) -> Sectors {
        Sectors::MAX
    }

    fn limits(&self) -> Limits {
        Limits::default()
    }

    fn id(&self) -> DeviceId {
        DeviceId::Anonymous(std::ptr::from_ref(self) as usize)
    }

    fn name(&self) -> String {
        format!("thin device {}", self.device.id)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bio_carries_what_was_found() {
        let data = (1 << 40) - 1;
        let at = |shared| Known::At(Place { data, shared });
        for known in [Known::Unknown, Known::Unmapped, at(false), at(true)] {
            for (committed, changes) in [(false, 0), (true, 1), (true, (1 << 52) - 1), (false, 1 << 32)] {
                let found = Found { known, committed, changes };
                assert_eq!(Found::of(found.words()), found);
            }
        }
    }
}
