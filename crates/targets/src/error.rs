//! # Purpose
//! Fails every I/O, to test what stands above it, or to take the place of lost data.
//! # Table
//! `<start> <length> error [<device> <start sector>]`
//!
//! Only the device's limits are used.
//! # Status
//! Empty.
//! # Messages
//! None.
//! # Differences from the kernel
//! None (`io_err_*`, `drivers/md/dm-target.c`, 6.12).

use udm_base::{ArgError, Sectors};
use udm_core::{Ctr, Map, NewTarget, StatusKind, Target, TargetType};
use udm_io::{Bio, Cx, Limits, Status};

pub(crate) static TYPE: TargetType = TargetType::new("error", [1, 7, 0], ctr);

struct Failing;

fn ctr(ctr: &mut Ctr<'_>) -> Result<NewTarget, ArgError> {
    // The kernel takes any other number of arguments, and ignores them.
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

    /// It fails discards too, whatever the device offers (`io_err_io_hints`).
    fn limits(&self, limits: &mut Limits) {
        limits.max_discard = Sectors::MAX;
        limits.max_write_zeroes = Sectors::ZERO;
    }
}
