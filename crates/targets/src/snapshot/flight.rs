//! Frames and redirections of bios of snapshots: the part of these targets with `unsafe` pointers.
//!
//! A snapshot and its origin outlive the bios in flight through them: the target holds them, and its table holds the
//! target.

use super::shared::Snapshot;
use udm_io::{Bio, BlockDevice, Cx};

/// Counts a read of the snapshot that goes to the origin for as long as it is under way.
pub(super) fn track(bio: &mut Bio, snapshot: &Snapshot) {
    // SAFETY: `tracked` gets a snapshot, which outlives the bio.
    let pushed = unsafe { bio.push_frame(tracked, std::ptr::from_ref(snapshot).cast()) };
    assert!(pushed, "core leaves room for a frame of a target that takes bios themselves");
}

/// # Safety
/// `word` is a snapshot that exists while the bio is in flight.
unsafe fn tracked(cx: &Cx<'_>, bio: Bio, word: *const ()) -> Option<Bio> {
    // SAFETY: the contract.
    let snapshot = unsafe { &*word.cast::<Snapshot>() };
    Some(snapshot.untrack(cx, bio))
}

/// Points a bio at a device that is held by the table which the bio goes through.
pub(super) fn point(bio: &mut Bio, dev: &dyn BlockDevice) {
    // SAFETY: the table stays while the bio is in flight.
    unsafe { bio.redirect(dev) };
}
