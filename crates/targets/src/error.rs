//! # Purpose
//! Fails every I/O, to test what stands above, or to fill the place of what is lost.
//! # Table
//! `<start> <length> error [<device> <start sector>]`
//!
//! The device lends its limits only.
//! # Status
//! Empty.
//! # Messages
//! None.
//! # Differences from the kernel
//! None (`io_err_*`, `drivers/md/dm-target.c`, 6.12).

use udm_base::{ArgError, Sector, Sectors};
use udm_core::{Ctr, Map, StatusKind, Target, TargetDevice, TargetFeatures, TargetType};
use udm_io::{Bio, Cx, Status};

pub(crate) static TYPE: TargetType =
    TargetType { name: "error", version: [1, 7, 0], features: TargetFeatures::NONE, ctr };

struct Failing(Option<TargetDevice>);

fn ctr(ctr: &mut Ctr<'_>) -> Result<Box<dyn Target>, ArgError> {
    if ctr.args.len() != 2 {
        // The kernel takes any other number of arguments, and looks at none.
        return Ok(Box::new(Failing(None)));
    }
    let name = ctr.args.need("Device lookup failed", "a device")?;
    let (start, _) = ctr.args.number("Invalid device sector", "a start sector")?;
    let dev = ctr.device(&name, "Device lookup failed")?;
    Ok(Box::new(Failing(Some(TargetDevice { dev, start: Sector::new(start), len: ctr.len }))))
}

impl Target for Failing {
    fn map(&self, _: &Cx<'_>, bio: Bio, _: Sectors) -> Map<'_> {
        Map::Ended(bio, Status::Io)
    }

    fn status(&self, _: StatusKind) -> String {
        String::new()
    }

    fn devices(&self) -> Vec<TargetDevice> {
        self.0.iter().cloned().collect()
    }

    fn is_synchronous(&self) -> bool {
        true
    }
}
