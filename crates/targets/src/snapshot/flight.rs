//! Frames and redirections of bios of snapshots: the part of these targets that has to vouch for pointers.
//!
//! A snapshot and its origin outlive the bios in flight through them: the target holds them, and its table holds the
//! target.

use super::shared::Snapshot;
use udm_io::{Bio, BlockDevice, Cx};

/// A read of the snapshot's that goes to the origin: it is counted as long as it is on its way.
pub(super) fn track(bio: &mut Bio, snapshot: &Snapshot) {
    // SAFETY: `tracked` gets a snapshot, which stays.
    let pushed = unsafe { bio.push_frame(tracked, std::ptr::from_ref(snapshot).cast()) };
    assert!(pushed, "core leaves room for a frame of a target that takes bios themselves");
}

/// # Safety
/// `word` is a snapshot that is there while the bio is in flight.
unsafe fn tracked(cx: &Cx<'_>, bio: Bio, word: *const ()) -> Option<Bio> {
    // SAFETY: the contract.
    let snapshot = unsafe { &*word.cast::<Snapshot>() };
    Some(snapshot.untrack(cx, bio))
}

/// Points a bio at a device that the table holds which the bio goes through.
pub(super) fn point(bio: &mut Bio, dev: &dyn BlockDevice) {
    // SAFETY: the table stays while the bio is in flight.
    unsafe { bio.redirect(dev) };
}
