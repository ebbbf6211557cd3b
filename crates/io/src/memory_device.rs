//! Memory serves bios: as a device of its own, and for devices that have some.

use crate::{Bio, BlockDevice, Cx, DeviceId, DirectAccess, Limits, Memory, Op, Status};
use std::any::Any;
use std::{io, ptr};
use udm_base::{Sector, Sectors};

impl Memory {
    /// Does the bio's operation at its sector, and says how it went. The caller ends it.
    #[inline]
    pub fn serve(&self, bio: &Bio) -> Status {
        self.serve_at(bio, bio.sector())
    }

    /// Does the bio's operation at another address than its own.
    #[inline]
    pub fn serve_at(&self, bio: &Bio, sector: Sector) -> Status {
        self.operate((bio.op(), bio.flags()), (sector, bio.sectors()), bio.segments())
    }
}

/// [`Memory`] as a block device of its own, for tests and for `BlockingIo`.
pub struct MemoryDevice(pub(crate) Memory);

impl MemoryDevice {
    /// A device of `size`.
    pub fn new(size: Sectors) -> io::Result<Self> {
        Memory::new(size).map(Self)
    }
}

impl BlockDevice for MemoryDevice {
    fn submit(&self, _: &Cx<'_>, bio: Bio) -> Option<Bio> {
        let status = self.0.serve(&bio);
        bio.end(status);
        None
    }

    fn sectors(&self) -> Sectors {
        self.0.sectors()
    }

    fn limits(&self) -> Limits {
        Limits::default()
    }

    fn id(&self) -> DeviceId {
        DeviceId::Anonymous(ptr::from_ref(self) as usize)
    }

    fn name(&self) -> String {
        format!("memory:{}", self.sectors())
    }

    fn direct_access<'a>(
        &'a self,
        _: &'a Cx<'_>,
        op: Op,
        sector: Sector,
        sectors: Sectors,
    ) -> Option<DirectAccess<'a>> {
        self.0.direct_access(op, sector, sectors)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
