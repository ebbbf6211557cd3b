//! # Purpose
//! Reads as zeroes, and forgets what is written: `/dev/zero` as a block device, of any size.
//! # Table
//! `<start> <length> zero`
//! # Status
//! Empty.
//! # Messages
//! None.
//! # Differences from the kernel
//! None (`drivers/md/dm-zero.c`, 6.12).

use udm_base::{ArgError, Sectors};
use udm_core::{Ctr, Map, NewTarget, StatusKind, Target, TargetType};
use udm_io::{Bio, Cx, Extent, ExtentKind, ExtentsReply, Op, Status};

pub(crate) static TYPE: TargetType = TargetType::new("zero", [1, 2, 0], ctr);

struct Zero;

fn ctr(ctr: &mut Ctr<'_>) -> Result<NewTarget, ArgError> {
    ctr.args.expect_count(0..=0, "No arguments required", "no arguments")?;
    Ok(NewTarget::new(Zero).ends_at_once())
}

impl Target for Zero {
    fn map(&self, _: &Cx<'_>, bio: Bio, _: Sectors) -> Map<'_> {
        if bio.op() == Op::Read {
            bio.fill(0);
        }
        Map::Ended(bio, Status::Ok)
    }

    fn status(&self, _: StatusKind) -> String {
        String::new()
    }

    fn extents(&self, _: &Cx<'_>, _: Sectors, sectors: Sectors, reply: ExtentsReply) {
        reply.give(vec![Extent { sectors, kind: ExtentKind::Hole }]);
    }
}
