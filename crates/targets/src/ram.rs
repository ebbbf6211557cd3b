//! # Purpose
//! A RAM disk: memory, sparse until written, in huge pages where they can be had. A discard gives memory back. Writes
//! of 4 KiB and more to a disk of more than 256 MiB go past the CPU's caches.
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

use std::sync::Arc;
use udm_base::{ArgError, Sectors};
use udm_core::{Ctr, Map, NewTarget, StatusKind, Target, TargetType};
use udm_io::{Bio, Cx, Memory};

pub(crate) static TYPE: TargetType = TargetType::new("ram", [1, 0, 0], ctr).singleton();

struct Ram(Arc<Memory>);

fn ctr(ctr: &mut Ctr<'_>) -> Result<NewTarget, ArgError> {
    ctr.args.expect_count(0..=0, "No arguments required", "no arguments")?;
    let memory = Memory::streaming(ctr.len);
    let memory = memory
        .map_err(|e| ArgError::new("Cannot allocate memory").errno(udm_base::Errno::of(&e)).hint(e.to_string()))?;
    let memory = Arc::new(memory);
    Ok(NewTarget::new(Ram(memory.clone())).backed_by_memory(memory))
}

impl Target for Ram {
    fn map(&self, _: &Cx<'_>, bio: Bio, at: Sectors) -> Map<'_> {
        let status = self.0.serve_at(&bio, at.from_start());
        Map::Ended(bio, status)
    }

    fn status(&self, _: StatusKind) -> String {
        String::new()
    }
}
