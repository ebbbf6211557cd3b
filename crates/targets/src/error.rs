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

use udm_base::{ArgError, Sectors};
use udm_core::{Ctr, Map, NewTarget, StatusKind, Target, TargetType};
use udm_io::{Bio, Cx, Status};

pub(crate) static TYPE: TargetType = TargetType::new("error", [1, 7, 0], ctr);

struct Failing;

fn ctr(ctr: &mut Ctr<'_>) -> Result<NewTarget, ArgError> {
    // The kernel takes any other number of arguments, and looks at none.
    let is_given = ctr.args.len() == 2;
    let device = is_given.then(|| ctr.device_range("Invalid device sector", "Device lookup failed")).transpose()?;
    Ok(NewTarget::new(Failing).maps_to(device).ends_at_once())
}

impl Target for Failing {
    fn map(&self, _: &Cx<'_>, bio: Bio, _: Sectors) -> Map<'_> {
        Map::Ended(bio, Status::Io)
    }

    fn status(&self, _: StatusKind) -> String {
        String::new()
    }
}
