//! # Purpose
//! Shows an origin as it was when the snapshot was made: what is written, to either, is kept apart on a COW device.
//! # Table
//! `<start> <length> snapshot <origin> <COW device> P|PO|N <chunk sectors> [<n> discard_zeroes_cow discard_passdown_origin]`
//!
//! `P` survives a restart, `PO` too and its users know of overflows, `N` does not survive. A chunk size of 0 is that of
//! the header, or 32 sectors.
//! # Status
//! `<allocated>/<total> <metadata>` in sectors of the COW device, or `Invalid`, `Overflow`, `Merge failed`.
//! # Messages
//! `fill_levels <percent>…`: an event each time the COW device is that full; 80 and 95 unless set.
//! `copy_stats`, `copy_throttle <percent>`: of the copies to all snapshots of the origin.
//! # Differences from the kernel
//! One read of the origin serves all snapshots with the same chunk size. A write to the origin that makes a snapshot
//! invalid waits until the header says so. A read that was on its way to the origin when the snapshot became invalid
//! fails.

use super::flight;
use super::holding::Holding;
use super::shared::Event;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use udm_base::{ArgError, Sector, Sectors};
use udm_core::{Ctr, Error, Map, NewTarget, StatusKind, Target, TargetDevice, TargetType};
use udm_io::{Bio, BlockDevice, Cx, Limits, Op, Status};

pub(crate) static TYPE: TargetType = TargetType::new("snapshot", [1, 16, 0], ctr);

struct SnapshotTarget(Holding);

fn ctr(ctr: &mut Ctr<'_>) -> Result<NewTarget, ArgError> {
    let holding = Holding::open(ctr, false)?;
    let it = holding.snapshot.clone();
    let cow = TargetDevice { dev: it.cow.clone(), start: Sector::ZERO, len: it.cow.sectors() };
    let origin: Arc<dyn BlockDevice> = it.origin.dev.clone();
    let made = NewTarget::new(SnapshotTarget(holding)).maps_to([cow]).keeps([origin]);
    let made = made.split_at(it.chunk.sectors()).in_place();
    Ok(if it.persistent { made } else { made.transient() })
}

impl Target for SnapshotTarget {
    fn map(&self, cx: &Cx<'_>, mut bio: Bio, at: Sectors) -> Map<'_> {
        let it = &*self.0.snapshot;
        if !self.0.is_valid() {
            return Map::Ended(bio, Status::Io);
        }
        bio.set_sector(at.from_start());
        if bio.op() == Op::Discard {
            return self.discard(cx, bio);
        }
        let is_write = bio.op().is_write();
        if is_write && it.overflowed.load(SeqCst) {
            return Map::Ended(bio, Status::Io);
        }
        if let Some(entry) = it.exceptions.get(it.chunk.of(bio.sector())) {
            bio.set_sector(it.place(entry.new, bio.sector()));
            return Map::Remapped(bio, &*it.cow);
        }
        if is_write {
            it.origin.post(cx, Event::SnapshotWrite(it.id, bio));
            return Map::Kept;
        }
        if it.track(&mut bio) {
            return Map::Remapped(bio, &*it.origin.dev);
        }
        it.settle(cx);
        match it.exceptions.get(it.chunk.of(bio.sector())) {
            Some(entry) => {
                bio.set_sector(it.place(entry.new, bio.sector()));
                Map::Remapped(bio, &*it.cow)
            }
            None => Map::Ended(bio, Status::Io),
        }
    }

    fn status(&self, kind: StatusKind) -> String {
        self.0.status(kind)
    }

    fn limits(&self, limits: &mut Limits) {
        self.0.limits(limits);
    }

    fn message(&self, words: &[&str]) -> Result<String, Error> {
        self.0.message(words)
    }

    fn presuspend(&self, _: bool) {
        self.0.presuspend();
    }

    fn postsuspend(&self) {
        self.0.postsuspend();
    }

    fn preresume(&self) -> Result<(), Error> {
        self.0.preresume()
    }

    fn resume(&self) {
        self.0.resume();
    }
}

impl SnapshotTarget {
    /// A discard zeroes the place of a whole chunk that has one, and is passed down to that of part of one. A chunk
    /// without exception is left alone. With `discard_passdown_origin` it then goes to the origin, without exceptions
    /// there.
    fn discard(&self, cx: &Cx<'_>, mut bio: Bio) -> Map<'_> {
        let it = &*self.0.snapshot;
        let pass = self.0.features.discard_passdown_origin && !it.origin.dev.limits().max_discard.is_zero();
        if it.overflowed.load(SeqCst) {
            return Map::Ended(bio, Status::Io);
        }
        let Some(entry) = it.exceptions.get(it.chunk.of(bio.sector())) else {
            if pass && it.track(&mut bio) {
                return Map::Remapped(bio, &*it.origin.dev);
            }
            it.settle(cx);
            return Map::Ended(bio, Status::Ok);
        };
        if bio.sectors() == it.chunk.sectors() {
            if pass {
                flight::point(&mut bio, &*it.origin.dev);
            }
            it.origin.post(cx, Event::Discard { id: it.id, new: entry.new, bio, pass });
            return Map::Kept;
        }
        if it.cow.limits().max_discard.is_zero() {
            return Map::Ended(bio, Status::Ok);
        }
        bio.set_sector(it.place(entry.new, bio.sector()));
        Map::Remapped(bio, &*it.cow)
    }
}
