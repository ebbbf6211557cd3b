//! The record behind a bio: four cache lines in its channel's slab.

use super::bio::Bio;
use super::core::ChannelCore;
use super::cx::Cx;
use super::device::BlockDevice;
use crate::bio::{Op, OpFlags, Segment, Status};
use crate::polling::Polled;
use std::ptr::NonNull;
use udm_base::{Sector, Sectors};

/// How many completion frames a record has room for. A bio that needs one more is cloned.
pub(crate) const FRAMES: usize = 5;

/// What a completion frame does: it gets the bio with the sector it had when the frame was pushed.
/// `Some(bio)` goes on with the frame below; `None` means the bio was kept or released.
///
/// # Safety
/// Called with the word that was pushed along with it, inside the bio's channel.
pub type FrameFn = unsafe fn(&Cx<'_>, Bio, *const ()) -> Option<Bio>;

#[derive(Clone, Copy)]
pub(crate) struct Frame {
    pub(crate) func: FrameFn,
    pub(crate) word: *const (),
    pub(crate) sector: Sector,
}

#[repr(C, align(64))]
pub(crate) struct Record {
    // What a device reads.
    pub(crate) dev: Option<NonNull<dyn BlockDevice>>,
    pub(crate) sector: Sector,
    pub(crate) sectors: Sectors,
    pub(crate) segs: *const Segment,
    pub(crate) skip: usize,
    pub(crate) op: Op,
    pub(crate) flags: OpFlags,
    pub(crate) status: Status,
    pub(crate) frames: u8,
    /// What goes with `word`.
    pub(crate) note: u32,
    pub(crate) token: u64,
    // Where it belongs, and the list it waits in: free, pending, parked or mailbox.
    pub(crate) channel: NonNull<ChannelCore>,
    pub(crate) next: *mut Record,
    pub(crate) seg0: Segment,
    /// For a parent of clones: how many are out. For a clone: its parent.
    pub(crate) children: u32,
    pub(crate) level: u8,
    pub(crate) parent: *mut Record,
    pub(crate) word: u64,
    pub(crate) polled: Polled,
    pub(crate) stack: [std::mem::MaybeUninit<Frame>; FRAMES],
    /// Behind all that release builds have, so that every build sees what the rest of it takes.
    #[cfg(debug_assertions)]
    pub(crate) rounds: super::rounds::Rounds,
}

#[cfg(debug_assertions)]
const _: () = assert!(std::mem::offset_of!(Record, rounds) == 256, "a record is four cache lines");
#[cfg(not(debug_assertions))]
const _: () = assert!(std::mem::size_of::<Record>() == 256, "a record is four cache lines");
