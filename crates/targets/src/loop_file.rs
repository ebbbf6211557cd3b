//! # Purpose
//! Maps a range onto a file: a loop device as a target, with as many files in one table as it has lines.
//! # Table
//! `<start> <length> loop <path> [<offset in sectors>]`
//! # Status
//! Empty.
//! # Messages
//! None.
//! # Differences from the kernel
//! The kernel has no such target; this is dm-loop of 2018, which never used the file system's extents either. A file
//! that is shorter than its segment is refused when the table is loaded.

use udm_base::{ArgError, Sector, Sectors};
use udm_core::{Ctr, Map, NewTarget, StatusKind, Target, TargetDevice, TargetType};
use udm_io::{Bio, Cx, DeviceId};

pub(crate) static TYPE: TargetType = TargetType::new("loop", [1, 0, 0], ctr);

struct LoopFile(TargetDevice);

fn ctr(ctr: &mut Ctr<'_>) -> Result<NewTarget, ArgError> {
    ctr.args.expect_count(1..=2, "Invalid argument count", "<path> [<offset in sectors>]")?;
    let name = ctr.args.need("Invalid argument count", "a path")?;
    let start = match ctr.args.left() {
        0 => 0,
        _ => ctr.args.number("Invalid offset", "an offset in sectors")?.0,
    };
    let dev = ctr.device(&name, "Backing file lookup failed")?;
    if !matches!(dev.id(), DeviceId::File(..) | DeviceId::Number(_)) {
        let hint = format!("expected a path to a file, found {:?}; use linear for other devices", name.text);
        return Err(ArgError::new("Backing file lookup failed").hint(hint).at(&name));
    }
    let to = TargetDevice { dev, start: Sector::new(start), len: ctr.len };
    Ok(NewTarget::new(LoopFile(to.clone())).shifts_to(to))
}

impl Target for LoopFile {
    fn map(&self, _: &Cx<'_>, mut bio: Bio, at: Sectors) -> Map<'_> {
        bio.set_sector(self.0.start + at);
        Map::Remapped(bio, &*self.0.dev)
    }

    fn status(&self, kind: StatusKind) -> String {
        match (kind, self.0.start) {
            (StatusKind::Table, Sector::ZERO) => self.0.dev.name(),
            (StatusKind::Table, start) => format!("{} {start}", self.0.dev.name()),
            _ => String::new(),
        }
    }
}
