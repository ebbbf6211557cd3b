//! Floor 3: the kernel's persistent-data structures (`drivers/md/persistent-data`, 6.12), byte for byte: blocks of 4
//! KiB with checksums, space maps that count references, transactions that never write over what is in use, and
//! B+trees.
//!
//! It knows nothing of thin pools, and of no channel: what it reads and writes through is a [`BlockIo`].

pub mod array;
pub mod block;
pub mod btree;
mod cache;
mod data_map;
mod error;
pub mod layout;
mod memory;
mod metadata_map;
pub mod node;
mod overflow;
mod raw;
mod room;
mod store;
mod transaction;
mod value;

pub use block::{BLOCK_SIZE, Block, BlockIo, IoError, IoFuture, block_on};
pub use error::{Damage, Error, Kind, Space};
pub use memory::Memory;
pub use room::Needs;
pub use store::{Options, Store};
pub use transaction::Roots;
pub use value::{Ref, Root, Value};
