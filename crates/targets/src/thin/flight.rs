//! Frames and redirections of the bios of thin volumes: the part of the targets that has to vouch for pointers.

use super::inflight::Epoch;
use super::pool::Pool;
use super::worker::Event;
use std::sync::Arc;
use udm_base::Sector;
use udm_io::{Bio, BlockDevice, Cx};

/// A bio that goes to a data block: it leaves its epoch when it has come back.
///
/// The pool outlives the bio: the volume that maps it holds the pool, and its table holds the volume while the bio is in
/// flight.
#[inline]
pub(super) fn enter(bio: &mut Bio, pool: &Pool, epoch: Epoch) {
    let word = std::ptr::from_ref(pool).map_addr(|addr| addr | epoch.bit());
    // SAFETY: `landed` gets what it expects, and the pool stays: see above.
    let pushed = unsafe { bio.push_frame(landed, word.cast()) };
    assert!(pushed, "core leaves room for a frame of a target that takes bios themselves");
}

/// # Safety
/// `word` is a pool, its lowest bit the epoch, and the pool is there while the bio is in flight.
unsafe fn landed(cx: &Cx<'_>, bio: Bio, word: *const ()) -> Option<Bio> {
    let epoch = Epoch::from_bit(word.addr() & 1);
    // SAFETY: the contract.
    let pool = unsafe { &*word.cast::<Pool>().map_addr(|addr| addr & !1) };
    if pool.inflight.leave(cx, epoch) {
        pool.kick(cx);
    }
    Some(bio)
}

const _: () = assert!(std::mem::align_of::<Pool>() >= 2, "the epoch's bit is free");

/// Sends a bio to `sector` of the data device, and has it come back to the worker as the end of `job`.
pub(super) fn detour(mut bio: Bio, pool: &Arc<Pool>, job: u64, sector: Sector) -> Bio {
    let word = Box::into_raw(Box::new((pool.clone(), job)));
    // SAFETY: the box is `came_back`'s.
    let pushed = unsafe { bio.push_frame(came_back, word.cast_const().cast()) };
    assert!(pushed, "core leaves room for a frame of a target that takes bios themselves");
    bio.set_sector(sector);
    // SAFETY: the pool holds its data device, and the frame holds the pool.
    unsafe { bio.redirect(&*pool.data) };
    bio
}

/// # Safety
/// `word` is the box that [`detour`] has made.
unsafe fn came_back(cx: &Cx<'_>, bio: Bio, word: *const ()) -> Option<Bio> {
    // SAFETY: the contract.
    let (pool, job) = *unsafe { Box::from_raw(word.cast_mut().cast::<(Arc<Pool>, u64)>()) };
    pool.push(Event::Overwritten(job, bio));
    pool.detours.fetch_sub(1, std::sync::atomic::Ordering::AcqRel);
    pool.kick(cx);
    None
}

/// Points a bio at `dev`, which is the volume that the bio came to, or a device that the volume's table holds.
pub(super) fn point(bio: &mut Bio, dev: &dyn BlockDevice) {
    // SAFETY: the table stays while the bio is in flight.
    unsafe { bio.redirect(dev) };
}
