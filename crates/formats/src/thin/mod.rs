//! Thin pool metadata (`drivers/md/dm-thin-metadata.c`, 6.12): see docs/formats/thin.md.

mod error;
mod metadata;
pub mod superblock;
pub mod tools;
mod values;

pub use error::{Error, Field};
pub use metadata::{Change, Deletion, Geometry, MAX_DEVICE, Mapping, Metadata, Options, REMAINS, Run};
pub use values::{BlockTime, Details, DiskDetails, MAX_DATA_BLOCKS, MAX_TIME};
