//! # Purpose
//! Maps a range onto a range of another device, one to one.
//! # Table
//! `<start> <length> linear <device> <start sector>`
//! # Status
//! Empty.
//! # Messages
//! None.
//! # Differences from the kernel
//! A device that is too small is refused when a table is loaded, also on a reload, where the kernel waits for the
//! resume (`drivers/md/dm-linear.c`, 6.12).

use udm_base::{ArgError, Sectors};
use udm_core::{Ctr, Map, NewTarget, StatusKind, Target, TargetDevice, TargetType};
use udm_io::{Bio, Cx};

pub(crate) static TYPE: TargetType = TargetType::new("linear", [1, 4, 0], ctr);

struct Linear(TargetDevice);

fn ctr(ctr: &mut Ctr<'_>) -> Result<NewTarget, ArgError> {
    ctr.args.expect_count(2..=2, "Invalid argument count", "<device> <start sector>")?;
    let to = ctr.device_range("Invalid device sector", "Device lookup failed")?;
    Ok(NewTarget::new(Linear(to.clone())).shifts_to(to))
}

impl Target for Linear {
    fn map(&self, _: &Cx<'_>, mut bio: Bio, at: Sectors) -> Map<'_> {
        bio.set_sector(self.0.start + at);
        Map::Remapped(bio, &*self.0.dev)
    }

    fn status(&self, kind: StatusKind) -> String {
        match kind {
            StatusKind::Info { .. } => String::new(),
            StatusKind::Table => format!("{} {}", self.0.dev.name(), self.0.start),
            StatusKind::Measurement => format!("device_name={},start={}", self.0.dev.name(), self.0.start),
        }
    }
}
