//! Floor 2: files and block devices of the host as devices, and what belongs to them: who holds them, claims, mounts,
//! and memory that another process shares.
//!
//! # Invariants
//! - Nothing here blocks in `submit`; what would is done on threads of the domain's executor.
//! - Memory that can be cut off beneath us (a file in memory that is truncated) is an error and never kills the
//!   process: one handler of SIGBUS serves mapped files and [`ForeignMemory`].

mod backing;
mod buffered;
mod claims;
mod device;
mod error;
mod extents;
mod foreign;
mod guard;
mod hold;
mod holder;
mod limits;
mod mapped;
mod mounts;
mod polled;
mod ring;
mod sync;
mod transfers;
mod worker;

pub use claims::{Claim, Claims};
pub use device::{FileDevice, FileEngine, FileOptions};
pub use error::{OpenError, OpenErrorKind};
pub use foreign::ForeignMemory;
pub use mounts::{Mount, block_device, mounts};
