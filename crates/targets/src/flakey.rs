//! # Purpose
//! A device that fails, forgets writes or spoils data at times, to see what becomes of those above.
//! # Table
//! `<start> <length> flakey <device> <start sector> <up interval> <down interval> [<number of words> <feature>…]`
//!
//! The intervals are seconds, and the first begins when the table is loaded; or both are counted in requests
//! (`100bios`), and the first begins with the first request. Features: `error_reads`, `error_writes`, `drop_writes`,
//! `corrupt_bio_byte <number> <r or w> <value> <flags>`, `random_read_corrupt <probability>`, `random_write_corrupt
//! <probability>`; none is `error_reads error_writes`.
//! # Status
//! Empty.
//! # Messages
//! None.
//! # Differences from the kernel
//! Intervals in requests, and chance that a seed decides (`drivers/md/dm-flakey.c`, 6.12). Of the flags only the
//! operation, `REQ_FUA`, `REQ_POLLED` and `REQ_NOUNMAP` are known here. Zones do not exist.

mod features;
mod intervals;
mod spoiled;

use crate::faults::{Draws, Way};
use features::Features;
use intervals::Intervals;
use spoiled::Spoiler;
use std::sync::Arc;
use udm_base::{ArgError, Sector, Sectors};
use udm_core::{Attributes, Ctr, Map, NewTarget, StatusKind, Target, TargetDevice, TargetType, Until};
use udm_io::{Bio, Cx, ExtentsReply, Limits, Op, Status};

pub(crate) static TYPE: TargetType = TargetType::new("flakey", [1, 5, 0], ctr);

struct Flakey {
    to: TargetDevice,
    intervals: Intervals,
    features: Features,
    draws: Draws,
    spoiler: Arc<Spoiler>,
}

fn ctr(ctr: &mut Ctr<'_>) -> Result<NewTarget, ArgError> {
    const NO_DEVICE: &str = "Device lookup failed";
    let usage = "<device> <start sector> <up interval> <down interval>, and features";
    ctr.args.expect_count(4..=usize::MAX, "Invalid argument count", usage)?;
    let name = ctr.args.need(NO_DEVICE, "a device")?;
    let (start, _) = ctr.args.number("Invalid device sector", "a start sector")?;
    let intervals = Intervals::parse(ctr)?;
    let features = Features::parse(&mut ctr.args)?;
    let to = TargetDevice { dev: ctr.device(&name, NO_DEVICE)?, start: Sector::new(start), len: ctr.len };
    let spoiler = Arc::new(Spoiler::new(to.dev.clone()));
    let flakey = Flakey { to: to.clone(), intervals, features, draws: Draws::new(ctr), spoiler };
    Ok(NewTarget::new(flakey).maps_to([to]).takes_back().maps_flushes().in_place())
}

impl Target for Flakey {
    #[inline]
    fn map(&self, cx: &Cx<'_>, mut bio: Bio, at: Sectors) -> Map<'_> {
        if !self.intervals.is_down(cx) {
            if bio.op() != Op::Flush {
                bio.set_sector(self.to.start + at);
            }
            return Map::Remapped(bio, &*self.to.dev);
        }
        self.map_down(cx, bio, at)
    }

    /// A read that was sent on in a down interval, and which may be spoilt.
    fn end_io(&self, _: &Cx<'_>, bio: Bio, at: Sectors, _: u64) -> Map<'_> {
        let status = bio.status();
        if status.is_ok() {
            for (byte, value) in self.features.spoils(&bio, at, &self.draws).into_iter().flatten() {
                bio.copy_in(byte, &[value]);
            }
        }
        Map::Ended(bio, status)
    }

    /// A write that found no room for its copy.
    fn resume_io(&self, cx: &Cx<'_>, bio: Bio, at: Sectors, context: u64) -> Map<'_> {
        self.spoil(cx, bio, at, spoiled::unpacked(context))
    }

    fn status(&self, kind: StatusKind) -> String {
        match kind {
            StatusKind::Table => {
                format!("{} {} {} {}", self.to.dev.name(), self.to.start, self.intervals, self.features)
            }
            _ => String::new(),
        }
    }

    fn limits(&self, limits: &mut Limits) {
        limits.max_write_zeroes = Sectors::ZERO;
        if self.features.spoils_writes() {
            limits.max_sectors = limits.max_sectors.min(spoiled::SECTORS_MAX);
        }
    }

    fn extents(&self, cx: &Cx<'_>, at: Sectors, sectors: Sectors, reply: ExtentsReply) {
        self.to.dev.extents(cx, self.to.start + at, sectors, reply);
    }

    fn attributes(&self) -> Option<&dyn Attributes> {
        Some(self)
    }
}

impl Attributes for Flakey {
    fn set_option(&self, key: &str, value: &str) -> Option<()> {
        self.draws.set_option(key, value)
    }
}

impl Flakey {
    /// What becomes of a bio in a down interval (`flakey_map`).
    #[cold]
    fn map_down(&self, cx: &Cx<'_>, mut bio: Bio, at: Sectors) -> Map<'_> {
        let way = Way::of(&bio);
        match way {
            Way::Read if self.features.error_reads => return Map::Ended(bio, Status::Io),
            Way::Read => {
                bio.set_sector(self.to.start + at);
                return if self.features.spoils_reads() {
                    Map::WithEndIo(bio, &*self.to.dev, 0)
                } else {
                    Map::Remapped(bio, &*self.to.dev)
                };
            }
            Way::Write | Way::Flush if self.features.drop_writes => return Map::Ended(bio, Status::Ok),
            Way::Write | Way::Flush if self.features.error_writes => return Map::Ended(bio, Status::Io),
            Way::Flush => return Map::Remapped(bio, &*self.to.dev),
            Way::Write => {}
        }
        let spoils = self.features.spoils(&bio, at, &self.draws);
        self.spoil(cx, bio, at, spoils)
    }

    /// Sends a write on with some bytes replaced, in a copy: the memory is its writer's.
    fn spoil(&self, cx: &Cx<'_>, mut bio: Bio, at: Sectors, spoils: spoiled::Spoils) -> Map<'_> {
        bio.set_sector(self.to.start + at);
        if spoils.iter().all(Option::is_none) {
            return Map::Remapped(bio, &*self.to.dev);
        }
        // Before it is tried, so that what comes free in between is not missed.
        let ticket = self.spoiler.held.ticket();
        match self.spoiler.write(cx, bio, &spoils) {
            Ok(()) => Map::Kept,
            Err(bio) if self.spoiler.waits(cx) => {
                Map::Delayed(bio, Until::Released(&self.spoiler.held, ticket), spoiled::packed(spoils))
            }
            // As the kernel does without memory for a copy. Nobody waits for it: its channel ends.
            Err(bio) => Map::Remapped(bio, &*self.to.dev),
        }
    }
}
