//! The snapshot's persistent exception store (`drivers/md/dm-snap-persistent.c`, 6.12): see docs/formats/snapshot.md.
//!
//! Nothing here does I/O. Who owns a device asks what to read ([`Reader`], [`AreaReader`]) or to write ([`Batch`]),
//! does it in its own time, and comes back; so one code serves a worker that must not wait, the tools, and the
//! simulator.
//!
//! ```text
//!   Header::probe(first bytes) ─┬─ Empty ──► Store::format ──► Batch
//!                               └─ Header ─► Reader ─ read, feed … ─► Loaded { exceptions, store }
//!   store.allocate() ─ copy the chunk ─► store.commit(&done) ─► Batch ─ write ─► store.finish(batch, ok)
//!   store.merge(most) ─ copy the window ─► store.merge_commit(n) ─► Batch ─ write ─► store.finish(batch, ok)
//! ```
//!
//! # Invariants
//! - A number from the device is checked before it is used as a place or a size. An error names the chunk and the
//!   field.
//! - Exceptions become true in the order in which their chunks were allocated, since the first empty entry ends the
//!   store.
//! - An area that the reader could come to is zeroed, or whole, before the one before it is full.

mod area;
mod batch;
mod changes;
mod chunk;
mod error;
mod exception;
mod header;
mod layout;
mod picture;
mod reader;
mod store;
mod transient;

pub use area::AreaReader;
pub use batch::{AreaWrite, Batch, Content};
pub use changes::{Change, Changes};
pub use chunk::{ChunkSize, Geometry, Piece};
pub use error::{Error, ErrorKind};
pub use exception::{Exception, Run, runs};
pub use header::{Header, Probe};
pub use layout::{EXCEPTION_BYTES, HEADER_BYTES, MAGIC, VERSION};
pub use picture::{Picture, size};
pub use reader::{Loaded, Reader};
pub use store::{Full, Merge, Store, Usage};
pub use transient::Transient;
