//! # Purpose
//! A RAM disk: memory, sparse until written, in huge pages where they can be had. A discard gives memory back. Writes of
//! 4 KiB and more to a disk of more than 256 MiB go past the CPU's caches.
//! # Table
//! `<start> <length> ram`
//!
//! It must be the only target of its table. A new table begins with zeroes.
//! # Status
//! Empty.
//! # Messages
//! None.
//! # Differences from the kernel
//! The kernel has no such target; this is dm-ram of 2018, with discards.

use udm_base::{ArgError, Sectors};
use udm_core::{Ctr, Map, StatusKind, Target, TargetFeatures, TargetType};
use udm_io::{Bio, Cx, Memory};

pub(crate) static TYPE: TargetType = TargetType {
    name: "ram",
    version: [1, 0, 0],
    features: TargetFeatures { singleton: true, ..TargetFeatures::NONE },
    ctr,
};

struct Ram(Memory);

fn ctr(ctr: &mut Ctr<'_>) -> Result<Box<dyn Target>, ArgError> {
    ctr.args.expect_count(0..=0, "No arguments required", "no arguments")?;
    let memory = Memory::streaming(ctr.len);
    let memory = memory
        .map_err(|e| ArgError::new("Cannot allocate memory").errno(udm_base::Errno::of(&e)).hint(e.to_string()))?;
    Ok(Box::new(Ram(memory)))
}

impl Target for Ram {
    fn map(&self, _: &Cx<'_>, bio: Bio, at: Sectors) -> Map<'_> {
        let status = self.0.serve_at(&bio, at.from_start());
        Map::Ended(bio, status)
    }

    fn status(&self, _: StatusKind) -> String {
        String::new()
    }

    fn memory(&self) -> Option<&Memory> {
        Some(&self.0)
    }

    fn can_poll(&self) -> bool {
        true
    }

    fn is_synchronous(&self) -> bool {
        true
    }
}
