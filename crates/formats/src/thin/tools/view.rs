//! A superblock and what it leads to: the pool as it was committed, or a metadata snapshot.

use std::sync::Arc;

use udm_pdata::layout::{self, SpaceMapRoot};
use udm_pdata::{Block, BlockIo, Kind, block_on};
use zerocopy::FromBytes;

use super::Error;
use super::cursor::Cursor;
use crate::thin::superblock::{LOCATION, Superblock};
use crate::thin::{BlockTime, Details, DiskDetails, Field};

/// Which superblock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Which {
    /// What the last commit left.
    Main,
    /// The metadata snapshot that the main superblock holds.
    Held,
    /// The metadata snapshot in that block.
    At(u64),
}

/// See the module.
pub struct View {
    pub(super) io: Arc<dyn BlockIo>,
    /// Where the superblock lies.
    pub(super) at: u64,
    pub(super) superblock: Superblock,
    /// Said by somebody who knows better.
    data_blocks: Option<u64>,
}

pub(super) fn read(io: &dyn BlockIo, at: u64, into: Box<Block>) -> Result<Box<Block>, udm_pdata::Error> {
    block_on(io.read(at, into)).map_err(|error| udm_pdata::Error::Read { block: at, error })
}

/// Reads a block and checks that it is a `kind`.
pub(super) fn read_kind(io: &dyn BlockIo, at: u64, kind: Kind) -> Result<Box<Block>, udm_pdata::Error> {
    let block = read(io, at, Block::zeroed())?;
    layout::check(&block, kind, at)?;
    Ok(block)
}

pub(super) fn read_superblock(io: &dyn BlockIo, at: u64) -> Result<Superblock, Error> {
    let block = read(io, at, Block::zeroed())?;
    if at == LOCATION && Superblock::is_unformatted(&block) {
        return Err(crate::thin::Error::Unformatted.into());
    }
    Ok(Superblock::read(block, at)?)
}

pub(super) fn space_map_root(bytes: &[u8]) -> SpaceMapRoot {
    *SpaceMapRoot::ref_from_prefix(bytes).expect("a superblock has room for a root").0
}

impl View {
    /// Reads and checks a superblock; for a snapshot, the main one first. Blocks.
    ///
    /// # Errors
    /// When it cannot be read or is damaged, or no metadata snapshot is held.
    pub fn open(io: Arc<dyn BlockIo>, which: Which) -> Result<Self, Error> {
        let at = match which {
            Which::Main => LOCATION,
            Which::At(at) => at,
            Which::Held => match read_superblock(&*io, LOCATION)?.disk().held_root.get() {
                LOCATION => {
                    let what = "no metadata snapshot is held; `reserve_metadata_snap` asks a pool for one";
                    return Err(Error::Refused(what.into()));
                }
                at => at,
            },
        };
        let superblock = read_superblock(&*io, at)?;
        Ok(Self { io, at, superblock, data_blocks: None })
    }

    /// A view through a superblock that is not on the device.
    pub(super) fn through(io: Arc<dyn BlockIo>, superblock: Superblock) -> Self {
        Self { io, at: LOCATION, superblock, data_blocks: None }
    }

    /// The same, with other words for what the superblock says.
    #[must_use]
    pub fn with(mut self, overrides: super::restore::Overrides) -> Self {
        if let Some(id) = overrides.transaction {
            self.superblock.disk_mut().trans_id.set(id);
        }
        if let Some(size) = overrides.data_block_size {
            self.superblock.disk_mut().data_block_size.set(size);
        }
        self.data_blocks = overrides.data_blocks.or(self.data_blocks);
        self
    }

    /// Data blocks in the pool; a metadata snapshot does not know, and says 0.
    #[must_use]
    pub fn data_blocks(&self) -> u64 {
        match (self.data_blocks, self.at) {
            (Some(blocks), _) => blocks,
            (None, LOCATION) => space_map_root(&self.superblock.disk().data_space_map_root).nr_blocks.get(),
            (None, _) => 0,
        }
    }

    /// A device's number is 32 bits wide wherever it is printed.
    fn device(key: u64, root: u64, field: &'static str) -> Result<u32, Error> {
        let bad = |_| udm_pdata::Error::damage(root, Kind::Node, field, key, "a device number, at most 16777215");
        Ok(u32::try_from(key).map_err(bad)?)
    }

    /// Every device's details, in order. A damaged part is left out and told to `lost`, where there is one.
    pub(super) fn details(&self, lost: Option<&mut Vec<udm_pdata::Error>>) -> Result<Vec<(u32, Details)>, Error> {
        let root = self.superblock.disk().device_details_root.get();
        let mut cursor = Cursor::<DetailsValue>::new(&*self.io, root, lost.is_some());
        let mut all = Vec::new();
        while let Some((key, details)) = cursor.next()? {
            all.push((Self::device(key, root, "a key of the device details")?, details.0));
        }
        if let Some(lost) = lost {
            lost.append(&mut cursor.lost);
        }
        Ok(all)
    }

    /// The root of every device's mappings, in order.
    pub(super) fn roots(&self, lost: Option<&mut Vec<udm_pdata::Error>>) -> Result<Vec<(u32, u64)>, Error> {
        let root = self.superblock.disk().data_mapping_root.get();
        let mut cursor = Cursor::<u64>::new(&*self.io, root, lost.is_some());
        let mut all = Vec::new();
        while let Some((key, root)) = cursor.next()? {
            all.push((Self::device(key, root, "a key of the mapping tree")?, root));
        }
        if let Some(lost) = lost {
            lost.append(&mut cursor.lost);
        }
        Ok(all)
    }

    /// The root of one device's mappings.
    pub(super) fn root(&self, dev: u32) -> Result<u64, Error> {
        let found = self.roots(None)?.into_iter().find(|(id, _)| *id == dev);
        Ok(found.ok_or(crate::thin::Error::NoDevice(dev))?.1)
    }

    /// A device's mappings.
    pub(super) fn mappings(&self, root: u64) -> Cursor<'_, BlockTime> {
        Cursor::new(&*self.io, root, false)
    }

    /// What the superblock says about the trees' places, as far as it can be wrong by itself.
    pub(super) fn check_roots(&self) -> Result<(), Error> {
        let (disk, blocks) = (self.superblock.disk(), self.io.blocks());
        for (field, root) in
            [(Field::MappingRoot, disk.data_mapping_root.get()), (Field::DetailsRoot, disk.device_details_root.get())]
        {
            if root == LOCATION || root >= blocks {
                let expected = format!("1 to {}", blocks.saturating_sub(1));
                return Err(crate::thin::Error::superblock(self.at, field, &root, &expected).into());
            }
        }
        Ok(())
    }
}

/// Details as a tree's value, which is only read here.
#[derive(Clone, Copy)]
pub(super) struct DetailsValue(pub(super) Details);

impl udm_pdata::Value for DetailsValue {
    const SIZE: usize = <DiskDetails as udm_pdata::Value>::SIZE;

    fn decode(bytes: &[u8]) -> Self {
        Self(<DiskDetails as udm_pdata::Value>::decode(bytes).into())
    }

    fn encode(&self, bytes: &mut [u8]) {
        udm_pdata::Value::encode(&DiskDetails::from(self.0), bytes);
    }
}
