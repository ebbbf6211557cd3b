//! Floor 0: units, device numbers, table arguments, error numbers and aligned memory.
//!
//! Nothing here does I/O, starts a thread or reads a clock. Only this crate converts between bytes
//! and sectors: everywhere else an address is a [`Sector`] and a length is a [`Sectors`].

mod aligned;
mod args;
pub mod concise;
mod devt;
mod errno;
mod stripes;
mod units;

pub use aligned::AlignedBuf;
pub use args::{Arg, ArgError, Args};
pub use devt::{DevT, ParseDevTError};
pub use errno::Errno;
pub use stripes::{Divisor, Stripes};
pub use units::{SECTOR_SHIFT, SECTOR_SIZE, Sector, Sectors};
