//! # Purpose
//! Takes a snapshot back: its chunks go to the origin in the background, while reads and writes see the snapshot.
//! # Table
//! `<start> <length> snapshot-merge <origin> <COW device> P|PO <chunk sectors> [<n> <features>]`, as a snapshot's
//! # Status
//! As a snapshot's. The merge is done when `<allocated>` is `<metadata>`: then there is an event.
//! # Messages
//! As a snapshot's.
//! # Differences from the kernel
//! Up to 256 chunks go at a time, and the origin is flushed before their exceptions are taken away.

use super::holding::Holding;
use super::shared::Event;
use std::any::Any;
use std::sync::Arc;
use udm_base::{ArgError, Sector, Sectors};
use udm_core::{Ctr, Error, Map, StatusKind, Target, TargetDevice, TargetFeatures, TargetType};
use udm_io::{Bio, BlockDevice, Cx, Limits, Op, Status};

pub(crate) static TYPE: TargetType =
    TargetType { name: "snapshot-merge", version: [1, 5, 0], features: TargetFeatures::NONE, ctr };

struct MergeTarget {
    holding: Holding,
    len: Sectors,
}

fn ctr(ctr: &mut Ctr<'_>) -> Result<Box<dyn Target>, ArgError> {
    Ok(Box::new(MergeTarget { holding: Holding::open(ctr, true)?, len: ctr.len }))
}

impl Target for MergeTarget {
    fn map(&self, cx: &Cx<'_>, mut bio: Bio, at: Sectors) -> Map<'_> {
        let it = &*self.holding.snapshot;
        if !self.holding.is_owner() {
            return Map::Ended(bio, Status::Io);
        }
        bio.set_sector(at.from_start());
        match bio.op() {
            // They change nothing any more.
            Op::Discard => Map::Ended(bio, Status::Ok),
            op if op.is_write() => {
                it.origin.post(cx, Event::MergeWrite(it.id, bio));
                Map::Kept
            }
            _ => match it.exceptions.get(it.chunk.of(bio.sector())).filter(|_| self.holding.is_valid()) {
                Some(entry) => {
                    bio.set_sector(it.place(entry.new, bio.sector()));
                    Map::Remapped(bio, &*it.cow)
                }
                None => Map::Remapped(bio, &*it.origin.dev),
            },
        }
    }

    fn status(&self, kind: StatusKind) -> String {
        self.holding.status(kind)
    }

    fn measurement(&self) -> String {
        self.holding.measurement()
    }

    fn devices(&self) -> Vec<TargetDevice> {
        let it = &self.holding.snapshot;
        let (origin, cow): (Arc<dyn BlockDevice>, _) = (it.origin.dev.clone(), it.cow.clone());
        vec![
            TargetDevice { dev: origin, start: Sector::ZERO, len: self.len },
            TargetDevice { start: Sector::ZERO, len: cow.sectors(), dev: cow },
        ]
    }

    fn as_any(&self) -> Option<&dyn Any> {
        Some(self)
    }

    fn limits(&self, limits: &mut Limits) {
        self.holding.limits(limits);
    }

    fn max_io_len(&self) -> Option<Sectors> {
        Some(self.holding.snapshot.chunk.sectors())
    }

    fn no_clone(&self) -> bool {
        true
    }

    fn takes_discards(&self) -> bool {
        self.holding.features.discard_zeroes_cow
    }

    fn takes_write_zeroes(&self) -> bool {
        false
    }

    fn message(&self, words: &[&str]) -> Result<String, Error> {
        self.holding.message(words)
    }

    fn presuspend(&self, _: bool) {
        self.holding.presuspend();
    }

    fn postsuspend(&self) {
        self.holding.postsuspend();
    }

    fn preresume(&self) -> Result<(), Error> {
        self.holding.preresume()
    }

    fn resume(&self) {
        self.holding.resume();
        self.holding.start_merge();
    }
}
