//! What the worker of a pool is left: bios, what has ended, and what control threads want.

use super::features::Features;
use super::volume::{ThinDevice, Volume};
use std::sync::Arc;
use udm_core::Error;
use udm_formats::thin::Change;
use udm_io::{Bio, ExtentsReply, Status};
use udm_worker::Reply;

/// What the worker is left.
pub(super) enum Event {
    /// A bio that its volume could not map. Its sector counts from the volume's start.
    Bio(Arc<Volume>, Bio),
    /// A client's bio has come back from the block that is being prepared with it.
    Overwritten(u64, Bio),
    /// An operation for a job has ended.
    Done(u64, Status),
    /// A control thread wants something.
    Command(Command),
    /// Nobody has the device open any more.
    Closed(u32),
}

/// What a control thread asks for.
pub(super) enum Command {
    /// Take these features, and the sizes that table and devices have now (`pool_preresume`).
    Bind {
        features: Features,
        low_water: u64,
        data_blocks: u64,
        metadata_blocks: u64,
        reply: Reply<Done>,
    },
    /// Bios are served from now on.
    Resume(Reply<Done>),
    /// Answered when nothing is in flight any more; bios wait.
    Suspend(Reply<Done>),
    Commit(Reply<Done>),
    Message(MetadataOf, Reply<Done>),
    Open {
        id: u32,
        blocks: u64,
        reply: Reply<Result<Arc<ThinDevice>, Error>>,
    },
    /// With a commit before, or without.
    Status(bool, Reply<PoolStatus>),
    VolumeStatus(u32, Reply<Result<VolumeStatus, Error>>),
    /// How far from a block on blocks are mapped, or not. The answer begins at a sector of the first.
    Extent {
        id: u32,
        from: u64,
        to: u64,
        into: u64,
        reply: ExtentsReply,
    },
    /// Gives back what waits for a volume.
    Requeue(Arc<Volume>, Reply<Done>),
    Close(Reply<Done>),
}

impl From<Command> for Event {
    fn from(command: Command) -> Self {
        Self::Command(command)
    }
}

/// What most commands answer.
pub(super) type Done = Result<(), Error>;

/// A pool's numbers, as its status line has them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct PoolStatus {
    pub(super) transaction_id: u64,
    pub(super) metadata: (u64, u64),
    pub(super) data: (u64, u64),
    pub(super) snap_root: Option<u64>,
    pub(super) features: Features,
    pub(super) error_if_no_space: bool,
    pub(super) needs_check: bool,
}

/// A volume's numbers, in blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct VolumeStatus {
    pub(super) mapped: u64,
    pub(super) highest: Option<u64>,
}

/// What a message asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum MetadataOf {
    CreateThin(u32),
    CreateSnap(u32, u32),
    Delete(u32),
    SetTransactionId(u64, u64),
    ReserveSnap,
    ReleaseSnap,
}

impl MetadataOf {
    /// What there has to be room for; of a release it is the least.
    pub(super) const fn change(self) -> Change {
        match self {
            Self::Delete(_) => Change::Delete,
            _ => Change::One,
        }
    }
}
