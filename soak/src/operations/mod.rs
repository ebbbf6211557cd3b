//! The random operations on the daemon: one file for each, and the list of them.

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
mod operation;
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

pub use operation::{Operation, Outcome};
pub(crate) use other_ways::have_a_loop_device_once;

use operation::POOL_SUSPENDED;

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
