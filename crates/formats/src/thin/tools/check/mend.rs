//! What a check may put right: counts that are too high, and the flag that asked for the check.

use std::sync::Arc;

use udm_pdata::{BlockIo, Roots, Space, Store, block_on};
use zerocopy::IntoBytes;

use super::super::view::{read_superblock, space_map_root};
use super::Error;
use crate::thin::superblock::{LOCATION, NEEDS_CHECK, Superblock};

/// A count that is too high.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Leak {
    /// Of which map.
    pub space: Space,
    /// The block.
    pub block: u64,
    /// By how much.
    pub extra: u32,
}

/// Takes the counts down, in one transaction: after a crash either all or none are. Blocks.
///
/// # Errors
/// When the metadata cannot be read or written.
pub fn mend(io: &Arc<dyn BlockIo>, leaks: &[Leak]) -> Result<(), Error> {
    let mut superblock = read_superblock(&**io, LOCATION)?;
    let disk = superblock.disk();
    let roots = Roots {
        metadata: space_map_root(&disk.metadata_space_map_root),
        data: Some(space_map_root(&disk.data_space_map_root)),
    };
    block_on(async {
        let mut store = Store::open(io.clone(), &roots, udm_pdata::Options::default()).await?;
        for leak in leaks {
            for _ in 0..leak.extra {
                match leak.space {
                    Space::Metadata => store.dec(leak.block).await?,
                    Space::Data => store.data_dec(leak.block..leak.block + 1).await?,
                }
            }
        }
        let roots = store.prepare_commit().await?;
        let disk = superblock.disk_mut();
        let data = roots.data.expect("it was opened");
        disk.data_space_map_root[..data.as_bytes().len()].copy_from_slice(data.as_bytes());
        disk.metadata_space_map_root[..roots.metadata.as_bytes().len()].copy_from_slice(roots.metadata.as_bytes());
        store.commit(LOCATION, superblock.sealed(LOCATION)).await?;
        Ok(())
    })
}

/// Clears the superblock's flag that the pool needs a check. Whether it was set. Blocks.
///
/// # Errors
/// When the superblock cannot be read or written.
pub fn clear_needs_check(io: &Arc<dyn BlockIo>) -> Result<bool, Error> {
    let mut superblock: Superblock = read_superblock(&**io, LOCATION)?;
    let flags = superblock.disk().flags.get();
    if flags & NEEDS_CHECK == 0 {
        return Ok(false);
    }
    superblock.disk_mut().flags.set(flags & !NEEDS_CHECK);
    block_on(io.write_fua(LOCATION, superblock.sealed(LOCATION))).map_err(udm_pdata::Error::Write)?;
    Ok(true)
}
