//! A block device as the layers above see it.

use super::bio::Bio;
use super::cx::Cx;
use super::shared::Domain;
use crate::{DirectAccess, ExtentsReply, Limits, Memory, Op};
use std::any::Any;
use std::time::Duration;
use udm_base::{DevT, Sector, Sectors};

/// The identity of a device: two names with the same identity are the same device.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub enum DeviceId {
    /// A block device, of udm's or of the host's.
    Number(DevT),
    /// A regular file: st_dev and st_ino.
    File(u64, u64),
    /// A device without a name, as `null:` or a remote export: its address in memory.
    Anonymous(usize),
}

/// Requests of a device to another machine or process that are not answered yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Outstanding {
    /// Requests that are under way.
    pub requests: usize,
    /// Requests that are not sent yet.
    pub queued: usize,
    /// For how long the oldest has been waiting, in nanoseconds.
    pub oldest_ns: u64,
    /// For how long no expected data has come, in nanoseconds.
    pub silent_ns: u64,
    /// The connection to the other side is lost for good.
    pub lost: bool,
}

/// A block device: a file, memory, a remote export, or a mapped device.
///
/// A submitter holds the device (by `Arc`, in its channel or in its table) until every bio that it has submitted there
/// has completed.
pub trait BlockDevice: Send + Sync + 'static {
    /// Takes a bio. The device ends it, keeps it until its I/O is done, or returns it redirected to a
    /// device beneath. The range lies within the device as it was when the submitter attached it; a
    /// device that can shrink checks again.
    ///
    /// Must not block and must not wait for a lock that is held during I/O.
    fn submit(&self, cx: &Cx<'_>, bio: Bio) -> Option<Bio>;

    /// All clones of a bio that this device serves have come back, at least one of them with
    /// [`Status::Requeue`](crate::Status::Requeue). The device keeps the bio, to serve it as a whole once more, or
    /// returns it, to complete with that status.
    fn take_back(&self, bio: Bio) -> Option<Bio> {
        Some(bio)
    }

    /// The size now.
    fn sectors(&self) -> Sectors;

    /// What it can take.
    fn limits(&self) -> Limits;

    /// Which device it is.
    fn id(&self) -> DeviceId;

    /// Its name as a table prints it: `M:m`, a path or a URI. A table with this name can be loaded again.
    fn name(&self) -> String;

    /// Whether writes are refused.
    fn read_only(&self) -> bool {
        false
    }

    /// How many mapped devices lie beneath it on the longest way down, itself included; 0 for a device that
    /// maps nothing. Clones are drawn from the reserve of this level.
    fn level(&self) -> usize {
        0
    }

    /// The memory that holds its data, if the data is nowhere else and so ends with the process.
    fn memory(&self) -> Option<&Memory> {
        None
    }

    /// Whether a HIPRI bio can be completed by polling.
    fn can_poll(&self) -> bool {
        false
    }

    /// How long an adaptive channel that holds it polls before it sleeps; `None`: as the channel's domain says.
    fn poll_budget(&self) -> Option<Duration> {
        None
    }

    /// Changes how many poll queues are in use; with 0 the device cannot be polled any more. Bios in flight complete
    /// all the same. False if the device's number of queues cannot be chosen.
    fn set_poll_queues(&self, n: u32) -> bool {
        let _ = n;
        false
    }

    /// Says what the `sectors` from `sector` hold, through `reply`, at once or later: see
    /// [`Questions`](crate::Questions). A device that does not know drops the reply: then the range counts as data.
    ///
    /// Like [`submit`](Self::submit), must not block and must not wait for a lock that is held during I/O.
    fn extents(&self, cx: &Cx<'_>, sector: Sector, sectors: Sectors, reply: ExtentsReply) {
        let _ = (cx, sector, sectors, reply);
    }

    /// The requests to another process or machine that it waits for, for people who ask why a bio does not complete.
    /// May block for a fraction of a second, not longer.
    fn outstanding(&self) -> Option<Outstanding> {
        None
    }

    /// Direct access to the memory of a range, to read or write it without a bio, for devices whose reads and writes do
    /// nothing else: a bio of that range would end at once and successfully. The access is valid during the section of
    /// `cx`.
    fn direct_access<'a>(
        &'a self,
        cx: &'a Cx<'_>,
        op: Op,
        sector: Sector,
        sectors: Sectors,
    ) -> Option<DirectAccess<'a>> {
        let _ = (cx, op, sector, sectors);
        None
    }

    /// Whether channels of `domain` may use it: a device that changes under grace periods belongs to one domain.
    fn is_for(&self, domain: &Domain) -> bool {
        let _ = domain;
        true
    }

    /// Itself, for code that looks for a device of its own type.
    fn as_any(&self) -> &dyn Any;
}
