//! Making metadata, and opening them.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use udm_pdata::layout::{MAX_METADATA_BLOCKS, SpaceMapRoot};
use udm_pdata::{Block, BlockIo, Root, Roots, Store, btree};
use zerocopy::FromBytes;

use super::{Geometry, Health, Metadata, Open, Options};
use crate::thin::error::{Error, Field};
use crate::thin::superblock::{LOCATION, ROOT_SIZE, Superblock, is_data_block_size};
use crate::thin::values::{DiskDetails, MAX_DATA_BLOCKS, MAX_TIME};

impl Metadata {
    /// Makes new metadata over whatever is there, and commits them. See [`open_or_format`](Self::open_or_format) for
    /// the rule that the kernel follows.
    ///
    /// # Errors
    /// I/O; a device too small or too large; a block size that no pool can have. Nothing is written then but for I/O
    /// errors.
    pub async fn format(io: Arc<dyn BlockIo>, geometry: &Geometry, options: Options) -> Result<Self, Error> {
        if options.read_only {
            return Err(Error::ReadOnly);
        }
        if !is_data_block_size(geometry.data_block) {
            let found = format!("{} sectors", geometry.data_block.get());
            let expected = "a multiple of 128 sectors from 128 to 2097152";
            return Err(Error::superblock(LOCATION, Field::DataBlockSize, &found, &expected));
        }
        check_data_blocks(geometry.data_blocks)?;
        let mut store = Store::create(io.clone(), 1, store_options(options))?;
        store.create_data(0).await?;
        let mut superblock = Superblock::new(geometry.data_block, store.nr_blocks());
        superblock.disk_mut().data_mapping_root.set(btree::empty::<Root>(&mut store).await?);
        superblock.disk_mut().device_details_root.set(btree::empty::<DiskDetails>(&mut store).await?);
        let mut new = Self::new(io, options, store, superblock);
        // As the kernel when a new pool is first resumed; it commits the empty map before.
        new.store.data_extend(geometry.data_blocks).await?;
        new.dirty = true;
        new.commit().await?;
        Ok(new)
    }

    /// Opens metadata. Writes nothing. The superblock and the bitmaps of the metadata space map are read (256 blocks at
    /// most), however many mappings there are.
    ///
    /// # Errors
    /// Those of the superblock, [`Error::Unformatted`], [`Error::CutShort`], damage to the metadata space map, I/O.
    pub async fn open(io: Arc<dyn BlockIo>, geometry: &Geometry, options: Options) -> Result<Self, Error> {
        let block = io.read(LOCATION, Block::zeroed()).await.map_err(read_error)?;
        Self::open_block(io, block, geometry, options).await
    }

    /// The kernel's rule: formats when block 0 is all zeroes and the metadata are not to be read-only, else opens.
    ///
    /// # Errors
    /// As [`open`](Self::open) and [`format`](Self::format).
    pub async fn open_or_format(io: Arc<dyn BlockIo>, geometry: &Geometry, options: Options) -> Result<Self, Error> {
        let block = io.read(LOCATION, Block::zeroed()).await.map_err(read_error)?;
        if Superblock::is_unformatted(&block) && !options.read_only {
            return Self::format(io, geometry, options).await;
        }
        Self::open_block(io, block, geometry, options).await
    }

    async fn open_block(
        io: Arc<dyn BlockIo>,
        block: Box<Block>,
        geometry: &Geometry,
        options: Options,
    ) -> Result<Self, Error> {
        if Superblock::is_unformatted(&block) {
            return Err(Error::Unformatted);
        }
        let superblock = Superblock::read(block, LOCATION)?;
        let sectors = |size: udm_base::Sectors| format!("{} sectors", size.get());
        if superblock.data_block() != geometry.data_block {
            let (found, expected) = (sectors(superblock.data_block()), sectors(geometry.data_block));
            return Err(Error::superblock(LOCATION, Field::DataBlockSize, &found, &expected));
        }
        let opened = Self::open_superblock(io, superblock, options).await?;
        let recorded = opened.data_blocks();
        if geometry.data_blocks < recorded {
            return Err(Error::CutShort { what: "data", found: geometry.data_blocks, recorded });
        }
        Ok(opened)
    }

    /// Opens what `superblock` leads to. An abort does it again.
    pub(super) async fn open_superblock(
        io: Arc<dyn BlockIo>,
        superblock: Superblock,
        options: Options,
    ) -> Result<Self, Error> {
        let roots = check(&superblock, io.blocks(), options)?;
        let store = Store::open(io.clone(), &roots, store_options(options)).await?;
        Ok(Self::new(io, options, store, superblock))
    }

    fn new(io: Arc<dyn BlockIo>, options: Options, store: Store, committed: Superblock) -> Self {
        Self {
            io,
            options,
            store,
            open: Open::of(&committed),
            committed,
            transaction: 1,
            dirty: false,
            grown: false,
            no_changes: false,
            health: Health::Good,
            devices: HashMap::new(),
            changed: BTreeSet::new(),
            aborted: HashSet::new(),
            scratch: Vec::new(),
        }
    }
}

fn store_options(options: Options) -> udm_pdata::Options {
    udm_pdata::Options { cache_bytes: options.cache_bytes, read_only: options.read_only }
}

pub(super) fn read_error(error: udm_pdata::IoError) -> Error {
    Error::Data(udm_pdata::Error::Read { block: LOCATION, error })
}

pub(super) fn check_data_blocks(blocks: u64) -> Result<(), Error> {
    if blocks > MAX_DATA_BLOCKS {
        return Err(Error::TooLarge { what: "data", found: blocks, most: MAX_DATA_BLOCKS });
    }
    Ok(())
}

fn space_map_root(bytes: &[u8; ROOT_SIZE]) -> SpaceMapRoot {
    *SpaceMapRoot::ref_from_prefix(bytes).expect("a superblock has room for a root").0
}

/// Checks what the fields say about the device, and returns the space maps' roots.
fn check(superblock: &Superblock, device_blocks: u64, options: Options) -> Result<Roots, Error> {
    let disk = superblock.disk();
    let flags = |field, flags: u32| match flags {
        0 => Ok(()),
        // The kernel knows no feature either (`THIN_FEATURE_INCOMPAT_SUPP`, `dm-thin-metadata.h`, 6.12).
        some => {
            Err(Error::superblock(LOCATION, field, &format_args!("{some:#x}"), &"0: features that udm does not know"))
        }
    };
    flags(Field::IncompatFlags, disk.incompat_flags.get())?;
    if !options.read_only {
        flags(Field::CompatRoFlags, disk.compat_ro_flags.get())?;
    }
    if disk.time.get() > MAX_TIME {
        return Err(Error::superblock(LOCATION, Field::Time, &disk.time, &format_args!("at most {MAX_TIME}")));
    }
    let metadata = space_map_root(&disk.metadata_space_map_root);
    let recorded = metadata.nr_blocks.get();
    if recorded == 0 || recorded > MAX_METADATA_BLOCKS {
        let (found, expected) = (format!("{recorded} blocks"), format!("1 to {MAX_METADATA_BLOCKS}"));
        return Err(Error::superblock(LOCATION, Field::MetadataSpaceMap, &found, &expected));
    }
    if recorded > device_blocks {
        return Err(Error::CutShort { what: "metadata", found: device_blocks, recorded });
    }
    let data = space_map_root(&disk.data_space_map_root);
    if data.nr_blocks.get() > MAX_DATA_BLOCKS {
        let (found, expected) = (format!("{} blocks", data.nr_blocks), format!("at most {MAX_DATA_BLOCKS}"));
        return Err(Error::superblock(LOCATION, Field::DataSpaceMap, &found, &expected));
    }
    let roots = [
        (Field::MappingRoot, disk.data_mapping_root.get()),
        (Field::DetailsRoot, disk.device_details_root.get()),
        (Field::DataSpaceMap, data.bitmap_root.get()),
        (Field::DataSpaceMap, data.ref_count_root.get()),
    ];
    for (field, root) in roots {
        if root == LOCATION || root >= recorded {
            let last = recorded.saturating_sub(1);
            return Err(Error::superblock(LOCATION, field, &root, &format_args!("1 to {last}")));
        }
    }
    if disk.held_root.get() >= recorded {
        let expected = format!("less than {recorded}");
        return Err(Error::superblock(LOCATION, Field::HeldRoot, &disk.held_root, &expected));
    }
    Ok(Roots { metadata, data: Some(data) })
}
