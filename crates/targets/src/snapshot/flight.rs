//! Frames and redirections of bios of snapshots: the part of these targets that has to vouch for pointers.
//!
//! A snapshot and its origin outlive the bios in flight through them: the target holds them, and its table holds the target.

use super::shared::{Landed, Origin, Snapshot};
use std::sync::Arc;
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

/// Sends a bio to where it points, and has its origin learn of its return. It comes back with the sector that it has now.
pub(super) fn watch(bio: &mut Bio, origin: &Arc<Origin>, landed: Landed) {
    let word = Box::into_raw(Box::new((origin.clone(), landed)));
    // SAFETY: the box is `came_back`'s.
    let pushed = unsafe { bio.push_frame(came_back, word.cast_const().cast()) };
    assert!(pushed, "core leaves room for a frame of a target that takes bios themselves");
}

/// # Safety
/// `word` is the box that [`watch`] has made.
unsafe fn came_back(cx: &Cx<'_>, bio: Bio, word: *const ()) -> Option<Bio> {
    // SAFETY: the contract.
    let (origin, landed) = *unsafe { Box::from_raw(word.cast_mut().cast::<(Arc<Origin>, Landed)>()) };
    origin.landed(cx, bio, landed)
}

/// Points a bio at a device that the table holds which the bio goes through.
pub(super) fn point(bio: &mut Bio, dev: &dyn BlockDevice) {
    // SAFETY: the table stays while the bio is in flight.
    unsafe { bio.redirect(dev) };
}
