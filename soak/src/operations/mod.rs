//! What is done to the daemon, by chance: one file an operation, and the list of them.

mod beneath;
mod crowd;
mod dawdle;
mod descriptors;
mod full_pool;
mod grow_cow;
mod grow_origin;
mod grow_pool;
mod grow_thin;
mod idle_control;
mod kill;
mod long_zeroes;
mod machines;
mod merge;
mod metadata;
mod nbdkit;
mod other_ways;
mod reload;
mod replace;
mod scratch;
mod snapshot;
mod stall_node;
mod status;
mod suspend;
mod thin_delete;
mod thin_snapshot;
mod vanish;

pub(crate) use other_ways::have_a_loop_device_once;

use crate::world::Turn;

/// What became of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// It was done.
    Done,
    /// There was nothing to do it on, or somebody else was at it.
    Skipped,
}

/// Something that is done again and again.
#[derive(Clone, Copy, Debug)]
pub struct Operation {
    /// As in `--only NAME`.
    pub name: &'static str,
    /// What it does, in a line.
    pub what: &'static str,
    /// How often, beside the others.
    pub weight: u64,
    /// Nothing else is done meanwhile. The load goes on.
    pub alone: bool,
    /// Does it. An error fails the soak.
    pub run: fn(&mut Turn<'_>) -> Result<Outcome, String>,
}

/// What is said of a thin device while its pool is suspended.
const POOL_SUSPENDED: &[&str] = &["while pool is suspended"];

/// The one list of operations.
pub const OPERATIONS: &[Operation] = &[
    suspend::OPERATION,
    suspend::NOFLUSH,
    reload::OPERATION,
    grow_pool::OPERATION,
    grow_thin::OPERATION,
    thin_snapshot::OPERATION,
    thin_delete::OPERATION,
    snapshot::OPERATION,
    snapshot::DROP,
    grow_origin::OPERATION,
    grow_cow::OPERATION,
    merge::IN,
    merge::OUT,
    crowd::OPERATION,
    crowd::WIDE,
    stall_node::OPERATION,
    other_ways::TCP,
    other_ways::NODE,
    other_ways::LOOP,
    machines::MACHINE,
    machines::CHANNELS,
    vanish::OPERATION,
    long_zeroes::OPERATION,
    dawdle::HANDSHAKES,
    dawdle::WRITES,
    idle_control::OPERATION,
    beneath::USELESS_SERVER,
    beneath::SLOW_SERVER,
    nbdkit::OPERATION,
    full_pool::OPERATION,
    metadata::OPERATION,
    descriptors::OPERATION,
    scratch::OPERATION,
    status::OPERATION,
    kill::OPERATION,
    replace::OPERATION,
];
