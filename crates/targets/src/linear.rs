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

use udm_base::{ArgError, Sector, Sectors};
use udm_core::{Ctr, Map, Run, StatusKind, Target, TargetDevice, TargetFeatures, TargetType};
use udm_io::{Bio, Cx};

pub(crate) static TYPE: TargetType =
    TargetType { name: "linear", version: [1, 4, 0], features: TargetFeatures::NONE, ctr };

struct Linear(TargetDevice);

fn ctr(ctr: &mut Ctr<'_>) -> Result<Box<dyn Target>, ArgError> {
    ctr.args.expect_count(2..=2, "Invalid argument count", "<device> <start sector>")?;
    let name = ctr.args.need("Invalid argument count", "a device")?;
    let (start, _) = ctr.args.number("Invalid device sector", "a start sector")?;
    let dev = ctr.device(&name, "Device lookup failed")?;
    Ok(Box::new(Linear(TargetDevice { dev, start: Sector::new(start), len: ctr.len })))
}

impl Target for Linear {
    fn map(&self, _: &Cx<'_>, mut bio: Bio, at: Sectors) -> Map<'_> {
        bio.set_sector(self.0.start + at);
        Map::Remapped(bio, &*self.0.dev)
    }

    fn status(&self, kind: StatusKind) -> String {
        match kind {
            StatusKind::Info => String::new(),
            StatusKind::Table => format!("{} {}", self.0.dev.name(), self.0.start),
        }
    }

    fn measurement(&self) -> String {
        format!("device_name={},start={}", self.0.dev.name(), self.0.start)
    }

    fn devices(&self) -> Vec<TargetDevice> {
        vec![self.0.clone()]
    }

    fn no_clone(&self) -> bool {
        true
    }

    fn run(&self) -> Option<Run<'_>> {
        Some(Run { dev: &self.0.dev, start: self.0.start })
    }
}
