//! What `udm thin …` does: metadata in, text out, and back. Pure functions over a [`BlockIo`](udm_pdata::BlockIo) whose
//! futures are ready at once; who calls opens files, prints and shows progress.
//!
//! Only [`restore`], [`check::mend`] and [`check::clear_needs_check`] write. The others hold a few blocks for each
//! level of a tree, and no more for a larger pool; [`check`] and [`ls`] hold two bits for each data block of those
//! bitmaps that count a mapped one.
//!
//! Formats and options are those of Debian's thin-provisioning-tools 0.9.0, whose output this equals byte for byte.

pub mod check;
mod counts;
mod cursor;
pub mod delta;
pub mod dump;
mod emit;
mod error;
pub mod ls;
pub mod repair;
pub mod restore;
pub mod rmap;
pub mod size;
mod tag;
mod view;

pub use emit::{Emit, Head, Human, Run, Xml};
pub use error::Error;
pub use view::{View, Which};

/// Who wants to know how far it is.
pub trait Progress {
    /// `done` of `total` units, which mean the same within one run; `total` may grow. Called often: it has to be cheap.
    fn at(&mut self, done: u64, total: u64);
}

/// Nobody.
impl Progress for () {
    fn at(&mut self, _: u64, _: u64) {}
}
