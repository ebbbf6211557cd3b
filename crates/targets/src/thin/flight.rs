//! Frames and redirections of the bios of thin volumes: the part of the targets that has to vouch for pointers.

use super::pool::Pool;
use udm_base::Sector;
use udm_io::{Bio, BlockDevice};
use udm_worker::Epoch;

/// A bio that goes to a data block: it leaves its epoch when it has come back.
///
/// The pool outlives the bio: the volume that maps it holds the pool, and its table holds the volume while the bio is
/// in flight.
#[inline]
pub(super) fn enter(bio: &mut Bio, pool: &Pool, epoch: Epoch) {
    // SAFETY: the pool stays: see above.
    unsafe { pool.carry(bio, epoch) };
}

/// Points a bio at `sector` of the data device.
pub(super) fn detour(bio: &mut Bio, pool: &Pool, sector: Sector) {
    bio.set_sector(sector);
    point(bio, &*pool.data);
}

/// Points a bio at `dev`, which is the volume that the bio came to, or a device that the volume's table or pool holds.
pub(super) fn point(bio: &mut Bio, dev: &dyn BlockDevice) {
    // SAFETY: the table stays while the bio is in flight.
    unsafe { bio.redirect(dev) };
}
