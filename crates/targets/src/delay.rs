//! # Purpose
//! Delays reads, writes and flushes, each by a time of its own and to a device of its own.
//! # Table
//! `<start> <length> delay <device> <start sector> <delay> [<device> <start sector> <delay> [<device> <start sector>
//! <delay>]]`
//!
//! The first leg is that of reads, the second of writes, the third of flushes; what is not given is as the leg before
//! it. A delay is a number of milliseconds; or as [`Latency`] has it.
//! # Status
//! `<reads> <writes> <flushes>` that are being delayed.
//! # Messages
//! None.
//! # Differences from the kernel
//! Delays are kept to the nanosecond, where the kernel has ticks of its clock, or for less than 50 ms a thread that is
//! never asleep (`drivers/md/dm-delay.c`, 6.12). Bios go on in the order of their times, not in that of their arrival.
//! A flush also flushes the device of the writes, where that is another one than its own.

use crate::faults::{Draws, Latency, Way};
use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use udm_base::{ArgError, Sector, Sectors};
use udm_core::{Attributes, Ctr, Map, NewTarget, StatusKind, Target, TargetDevice, TargetType, Until};
use udm_io::{Bio, Cx, ExtentsReply, Limits};

pub(crate) static TYPE: TargetType = TargetType::new("delay", [1, 4, 0], ctr);

struct Delay {
    /// One to three.
    legs: Vec<Leg>,
    kept: Kept,
    draws: Draws,
}

/// Bios that are kept now, by what they do: counted on several cache lines, since all channels count them.
#[derive(Default)]
struct Kept([Line; 16]);

#[derive(Default)]
#[repr(align(64))]
struct Line([AtomicU64; 3]);

struct Leg {
    to: TargetDevice,
    delay: Latency,
}

/// What a bio comes back from: the wait, or as a flush the first of two devices.
const WAIT: u64 = 0;
const FLUSHED: u64 = 1;

fn ctr(ctr: &mut Ctr<'_>) -> Result<NewTarget, ArgError> {
    let usage = "<device> <start sector> <delay> for reads, or also for writes, or also for flushes";
    let wanted = ctr.args.len().next_multiple_of(3).clamp(3, 9);
    ctr.args.expect_count(wanted..=wanted, "Requires exactly 3, 6 or 9 arguments", usage)?;
    let legs = (0..wanted / 3).map(|_| leg(ctr)).collect::<Result<Vec<_>, _>>()?;
    let devices: Vec<_> = legs.iter().map(|leg| leg.to.clone()).collect();
    let is_none = legs.iter().all(|leg| leg.delay.is_none());
    let delay = Delay { legs, kept: Default::default(), draws: Draws::new(ctr) };
    let made = NewTarget::new(delay);
    match &devices[..] {
        // No delay at all: as linear, so that it costs no more.
        [to] if is_none => Ok(made.shifts_to(to.clone())),
        _ => Ok(made.maps_to(devices).takes_back().maps_flushes().in_place()),
    }
}

impl Target for Delay {
    fn map(&self, cx: &Cx<'_>, bio: Bio, at: Sectors) -> Map<'_> {
        let way = Way::of(&bio);
        let leg = self.leg(way);
        if leg.delay.is_none() {
            return self.send(bio, at, way);
        }
        self.kept.of(cx, way).fetch_add(1, Ordering::Relaxed);
        let ns = leg.delay.ns(|| self.draws.draw(way, at));
        Map::Delayed(bio, Until::At(cx.now().after(ns)), WAIT)
    }

    fn resume_io(&self, cx: &Cx<'_>, bio: Bio, at: Sectors, _: u64) -> Map<'_> {
        let way = Way::of(&bio);
        self.kept.of(cx, way).fetch_sub(1, Ordering::Relaxed);
        self.send(bio, at, way)
    }

    fn end_io(&self, cx: &Cx<'_>, bio: Bio, _: Sectors, context: u64) -> Map<'_> {
        let status = bio.status();
        match context {
            FLUSHED if status.is_ok() => Map::Remapped(bio, &*self.leg(Way::Write).to.dev),
            FLUSHED => Map::Ended(bio, status),
            // Its channel has gone while it waited.
            _ => {
                self.kept.of(cx, Way::of(&bio)).fetch_sub(1, Ordering::Relaxed);
                Map::Ended(bio, status)
            }
        }
    }

    fn status(&self, kind: StatusKind) -> String {
        let kept = |way| self.kept.sum(way);
        let mut out = String::new();
        match kind {
            StatusKind::Info { .. } => {
                let _ = write!(out, "{} {} {}", kept(Way::Read), kept(Way::Write), kept(Way::Flush));
            }
            StatusKind::Table => {
                for (at, leg) in self.legs.iter().enumerate() {
                    let space = if at == 0 { "" } else { " " };
                    let _ = write!(out, "{space}{} {} {}", leg.to.dev.name(), leg.to.start, leg.delay);
                }
            }
            StatusKind::Measurement => {}
        }
        out
    }

    fn limits(&self, limits: &mut Limits) {
        limits.max_write_zeroes = Sectors::ZERO;
    }

    fn extents(&self, cx: &Cx<'_>, at: Sectors, sectors: Sectors, reply: ExtentsReply) {
        let to = &self.leg(Way::Read).to;
        to.dev.extents(cx, to.start + at, sectors, reply);
    }

    fn attributes(&self) -> Option<&dyn Attributes> {
        Some(self)
    }
}

impl Attributes for Delay {
    fn set_option(&self, key: &str, value: &str) -> Option<()> {
        self.draws.set_option(key, value)
    }
}

/// The next leg, checked in the kernel's order (`delay_class_ctr`).
fn leg(ctr: &mut Ctr<'_>) -> Result<Leg, ArgError> {
    const NO_DEVICE: &str = "Device lookup failed";
    let name = ctr.args.need(NO_DEVICE, "a device")?;
    let (start, _) = ctr.args.number("Invalid device sector", "a start sector")?;
    let delay = ctr.args.need("Invalid delay", "a delay")?;
    let delay = Latency::parse(&delay, "Invalid delay")?;
    let to = TargetDevice { dev: ctr.device(&name, NO_DEVICE)?, start: Sector::new(start), len: ctr.len };
    Ok(Leg { to, delay })
}

impl Kept {
    #[inline]
    fn of(&self, cx: &Cx<'_>, way: Way) -> &AtomicU64 {
        &self.0[cx.id() % self.0.len()].0[way as usize]
    }

    fn sum(&self, way: Way) -> u64 {
        self.0.iter().map(|line| line.0[way as usize].load(Ordering::Relaxed)).sum()
    }
}

impl Delay {
    #[inline]
    fn leg(&self, way: Way) -> &Leg {
        &self.legs[(way as usize).min(self.legs.len() - 1)]
    }

    #[inline(always)]
    fn send(&self, mut bio: Bio, at: Sectors, way: Way) -> Map<'_> {
        let to = &self.leg(way).to;
        if way == Way::Flush {
            let is_one = to.dev.id() == self.leg(Way::Write).to.dev.id();
            return if is_one { Map::Remapped(bio, &*to.dev) } else { Map::WithEndIo(bio, &*to.dev, FLUSHED) };
        }
        bio.set_sector(to.start + at);
        Map::Remapped(bio, &*to.dev)
    }
}
