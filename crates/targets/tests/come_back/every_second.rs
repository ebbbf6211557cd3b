//! # Purpose
//! Delays every second bio, to see how programs bear it.
//! # Table
//! `<start> <length> every-second <device> <start sector> <milliseconds>`
//! # Status
//! Empty.
//! # Messages
//! None.

use std::sync::atomic::{AtomicU64, Ordering};
use udm_base::{ArgError, Sectors};
use udm_core::{Ctr, Map, NewTarget, StatusKind, Target, TargetDevice, TargetType, Until};
use udm_io::{Bio, Cx};

pub(crate) static TYPE: TargetType = TargetType::new("every-second", [1, 0, 0], ctr);

struct EverySecond {
    to: TargetDevice,
    milliseconds: u64,
    count: AtomicU64,
}

fn ctr(ctr: &mut Ctr<'_>) -> Result<NewTarget, ArgError> {
    ctr.args.expect_count(3..=3, "Invalid argument count", "<device> <start sector> <milliseconds>")?;
    let to = ctr.device_range("Invalid device sector", "Device lookup failed")?;
    let (milliseconds, _) = ctr.args.number("Invalid delay", "milliseconds")?;
    let target = EverySecond { to: to.clone(), milliseconds, count: AtomicU64::new(0) };
    Ok(NewTarget::new(target).maps_to([to]).takes_back().in_place())
}

impl Target for EverySecond {
    fn map(&self, cx: &Cx<'_>, bio: Bio, at: Sectors) -> Map<'_> {
        match self.count.fetch_add(1, Ordering::Relaxed) % 2 {
            1 => Map::Delayed(bio, Until::At(cx.now().after(self.milliseconds.saturating_mul(1_000_000))), 0),
            _ => self.resume_io(cx, bio, at, 0),
        }
    }

    fn resume_io(&self, _: &Cx<'_>, mut bio: Bio, at: Sectors, _: u64) -> Map<'_> {
        bio.set_sector(self.to.start + at);
        Map::Remapped(bio, &*self.to.dev)
    }

    fn status(&self, kind: StatusKind) -> String {
        match kind {
            StatusKind::Table => format!("{} {} {}", self.to.dev.name(), self.to.start, self.milliseconds),
            _ => String::new(),
        }
    }
}
