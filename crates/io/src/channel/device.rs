//! What a block device is to the layers above.

use super::bio::Bio;
use super::cx::Cx;
use super::shared::Domain;
use crate::{DirectAccess, ExtentsReply, Limits, Memory, Op};
use std::any::Any;
use std::time::Duration;
use udm_base::{DevT, Sector, Sectors};

/// What makes two names the same device.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub enum DeviceId {
    /// A block device, of udm's or of the host's.
    Number(DevT),
    /// A regular file: st_dev and st_ino.
    File(u64, u64),
    /// A device without a name, as `null:` or a remote export: its address in memory.
    Anonymous(usize),
}

/// What a device has asked of others and not been answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Outstanding {
    /// Requests that are under way.
    pub requests: usize,
    /// Requests that are not sent yet.
    pub queued: usize,
    /// For how long the oldest has been waiting, in nanoseconds.
    pub oldest_ns: u64,
    /// For how long nothing has come while something was expected, in nanoseconds.
    pub silent_ns: u64,
    /// The other side is gone for good.
    pub lost: bool,
}

/// A block device: a file, memory, a remote export, or a mapped device.
///
/// Who submits to a device holds it (by `Arc`, in its channel or in its table) until every bio it
/// submitted there has completed.
pub trait BlockDevice: Send + Sync + 'static {
    /// Takes a bio. The device ends it, keeps it until its I/O is done, or returns it redirected to a
    /// device beneath. The range lies within the device as it was when the submitter attached it; a
    /// device that can shrink checks again.
    ///
    /// Must not block and must not wait for a lock that I/O is done under.
    fn submit(&self, cx: &Cx<'_>, bio: Bio) -> Option<Bio>;

    /// A bio that this device serves by clones has all of them back, and one of them with
    /// [`Status::Requeue`](crate::Status::Requeue), whatever became of the others. The device keeps the bio, to serve
    /// it as a whole once more, or gives it back to complete so.
    fn take_back(&self, bio: Bio) -> Option<Bio> {
        Some(bio)
    }

    /// The size now.
    fn sectors(&self) -> Sectors;

    /// What it can take.
    fn limits(&self) -> Limits;

    /// Which device it is.
    fn id(&self) -> DeviceId;

    /// Its name as a table prints it: `M:m`, a path or a URI. What it gives loads again.
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

    /// The memory that its data is in and nowhere else: what is there ends with the process.
    fn memory(&self) -> Option<&Memory> {
        None
    }

    /// Whether a HIPRI bio can be completed by polling.
    fn can_poll(&self) -> bool {
        false
    }

    /// How long an adaptive channel that holds it polls before it sleeps; `None`: as its domain says.
    fn poll_budget(&self) -> Option<Duration> {
        None
    }

    /// Changes how many queues that are polled are in use; 0: it cannot be polled any more. Bios in flight complete all
    /// the same. False where the number is not to be chosen.
    fn set_poll_queues(&self, n: u32) -> bool {
        let _ = n;
        false
    }

    /// What the `sectors` from `sector` hold, left in `reply` at once or later: see [`Questions`](crate::Questions).
    /// Who knows nothing drops the reply: then the range counts as data.
    ///
    /// As [`submit`](Self::submit), must not block and must not wait for a lock that I/O is done under.
    fn extents(&self, cx: &Cx<'_>, sector: Sector, sectors: Sectors, reply: ExtentsReply) {
        let _ = (cx, sector, sectors, reply);
    }

    /// What it waits for, if that is somebody else's answer: for people who ask why a bio is not done. May block for a
    /// fraction of a second, not longer.
    fn outstanding(&self) -> Option<Outstanding> {
        None
    }

    /// The memory that a range of it is, to be read or written without a bio, if that is all that reads and writes do
    /// here. Then a bio of that range would end at once and well. It may be lent for as long as the section that `cx`
    /// is.
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

    /// Whether channels of `domain` may use it: a device that is changed under grace periods is of one domain.
    fn is_for(&self, domain: &Domain) -> bool {
        let _ = domain;
        true
    }

    /// Itself, for those who look for a device of their own kind.
    fn as_any(&self) -> &dyn Any;
}
