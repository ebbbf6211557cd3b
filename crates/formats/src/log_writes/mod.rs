//! The log of the `log-writes` target (`drivers/md/dm-log-writes.c`, 6.12): see docs/formats/log-writes.md.
//!
//! Nothing here does I/O. The program that reads a log asks a [`Reader`] where the next entry lies, reads that sector,
//! and gives it back. The program that writes a log asks a [`Layout`] where the next entry goes.
//!
//! # Invariants
//! - A number from the device is checked before it is used as a place or a size: what a [`Reader`] names lies on the
//!   device. An error names the sector, the entry and the field.
//! - An entry that was fed is either what the kernel may write, to the last byte of its sector, or an error.

mod entry;
mod error;
mod layout;
mod raw;
mod reader;
mod superblock;
#[cfg(test)]
mod tests;

pub use entry::{Entry, Flags};
pub use error::{Error, ErrorKind};
pub use layout::{Full, Layout};
pub use raw::{ENTRY_BYTES, MAGIC, SUPERBLOCK_BYTES, VERSION};
pub use reader::{Reader, Record};
pub use superblock::{BlockSize, Superblock};
