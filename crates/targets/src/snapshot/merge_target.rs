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
use udm_base::{ArgError, Sector, Sectors};
use udm_core::{Ctr, Error, Map, NewTarget, StatusKind, Target, TargetDevice, TargetType};
use udm_io::{Bio, Cx, Limits, Op, Status};

pub(crate) static TYPE: TargetType = TargetType::new("snapshot-merge", [1, 5, 0], ctr);

struct MergeTarget(Holding);

fn ctr(ctr: &mut Ctr<'_>) -> Result<NewTarget, ArgError> {
    let holding = Holding::open(ctr, true)?;
    let it = holding.snapshot.clone();
    let origin = TargetDevice { dev: it.origin.dev.clone(), start: Sector::ZERO, len: ctr.len };
    let cow = TargetDevice { dev: it.cow.clone(), start: Sector::ZERO, len: it.cow.sectors() };
    let made = NewTarget::new(MergeTarget(holding)).maps_to([origin, cow]);
    Ok(made.split_at(it.chunk.sectors()).in_place())
}

impl Target for MergeTarget {
    fn map(&self, cx: &Cx<'_>, mut bio: Bio, at: Sectors) -> Map<'_> {
        let it = &*self.0.snapshot;
        if !self.0.is_owner() {
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
            _ => match it.exceptions.get(it.chunk.of(bio.sector())).filter(|_| self.0.is_valid()) {
                Some(entry) => {
                    bio.set_sector(it.place(entry.new, bio.sector()));
                    Map::Remapped(bio, &*it.cow)
                }
                None => Map::Remapped(bio, &*it.origin.dev),
            },
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
        self.0.start_merge();
    }
}
