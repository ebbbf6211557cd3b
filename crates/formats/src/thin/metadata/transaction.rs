//! Transactions, the `needs_check` flag, and the metadata snapshot.

use udm_pdata::{Block, Root, Roots, btree};
use zerocopy::IntoBytes;

use super::open::read_error;
use super::{Health, Metadata, Open};
use crate::thin::error::Error;
use crate::thin::superblock::{LOCATION, NEEDS_CHECK, Superblock};
use crate::thin::values::{BlockTime, DiskDetails};

/// Leaves that are deleted before the tree is looked at again.
const LEAVES: usize = 64;

impl Metadata {
    /// Makes every change since the last commit durable: writes what changed, flushes, writes the superblock with FUA.
    /// The caller has flushed the data device before. Writes nothing when nothing changed.
    ///
    /// # Errors
    /// [`Error::ReadOnly`]. After any other the open transaction can only be aborted.
    pub async fn commit(&mut self) -> Result<(), Error> {
        self.check()?;
        if self.is_read_only() {
            return Err(Error::ReadOnly);
        }
        if !self.dirty {
            return Ok(());
        }
        self.health = Health::Doubt;
        self.try_commit().await?;
        self.health = Health::Good;
        Ok(())
    }

    async fn try_commit(&mut self) -> Result<(), Error> {
        let changed: Vec<_> = self.changed.iter().map(|dev| (*dev, self.devices[dev].details)).collect();
        for (dev, details) in changed {
            self.set_details(dev, details).await?;
        }
        let roots = self.store.prepare_commit().await?;
        let superblock = self.superblock(&roots);
        self.store.commit(LOCATION, superblock.sealed(LOCATION)).await?;
        self.committed = superblock;
        self.open = Open::of(&self.committed);
        self.dirty = false;
        self.grown = false;
        self.transaction += 1;
        self.changed.clear();
        Ok(())
    }

    /// The committed superblock with what the open transaction has made of it.
    fn superblock(&self, roots: &Roots) -> Superblock {
        let mut superblock = self.committed.clone();
        let disk = superblock.disk_mut();
        disk.time.set(self.open.time);
        disk.trans_id.set(self.open.trans_id);
        disk.held_root.set(self.open.held_root);
        disk.data_mapping_root.set(self.open.root);
        disk.device_details_root.set(self.open.details_root);
        // A root is shorter than its place; what stands behind it stays.
        let metadata = roots.metadata.as_bytes();
        disk.metadata_space_map_root[..metadata.len()].copy_from_slice(metadata);
        let data = roots.data.as_ref().expect("a pool counts data blocks").as_bytes();
        disk.data_space_map_root[..data.len()].copy_from_slice(data);
        superblock
    }

    /// Drops every change since the last commit and reads the superblock again: if writing it was what failed, only the
    /// disk knows which one is there. Devices that had changes are [`aborted`](Self::aborted).
    ///
    /// # Errors
    /// After any the metadata have failed: [`is_failed`](Self::is_failed).
    pub async fn abort(&mut self) -> Result<(), Error> {
        if self.health == Health::Failed {
            return Err(Error::Failed);
        }
        self.health = Health::Failed;
        self.aborted.extend(std::mem::take(&mut self.changed));
        let block = self.io.read(LOCATION, Block::zeroed()).await.map_err(read_error)?;
        let superblock = Superblock::read(block, LOCATION)?;
        let fresh = Self::open_superblock(self.io.clone(), superblock, self.options).await?;
        self.store = fresh.store;
        self.committed = fresh.committed;
        self.open = fresh.open;
        self.devices.clear();
        self.dirty = false;
        self.grown = false;
        self.transaction += 1;
        self.health = Health::Good;
        Ok(())
    }

    /// Sets the `needs_check` flag in the superblock on disk, at once and durably; nothing else of the open transaction
    /// is written. The metadata are read-only from then on.
    ///
    /// # Errors
    /// [`Error::Failed`], [`Error::ReadOnly`] when they were opened so, I/O.
    pub async fn set_needs_check(&mut self) -> Result<(), Error> {
        if self.health == Health::Failed {
            return Err(Error::Failed);
        }
        if self.options.read_only {
            return Err(Error::ReadOnly);
        }
        let flags = self.committed.disk().flags.get() | NEEDS_CHECK;
        self.committed.disk_mut().flags.set(flags);
        let written = self.io.write_fua(LOCATION, self.committed.sealed(LOCATION)).await;
        written.map_err(udm_pdata::Error::Write)?;
        Ok(())
    }

    /// Commits what changed in trees and how far the devices have grown, then takes a metadata snapshot: a copy of the
    /// superblock whose trees stay as they are now. Commit afterwards. When only references to data blocks were taken
    /// or given back since the last commit, nothing is committed here: a caller that holds some over its commits
    /// commits itself first.
    ///
    /// # Errors
    /// [`Error::SnapHeld`], those of [`commit`](Self::commit).
    pub async fn reserve_snap(&mut self) -> Result<(), Error> {
        self.check()?;
        if let Some(held) = self.snap_root() {
            return Err(Error::SnapHeld(held));
        }
        let in_trees = self.open != Open::of(&self.committed) || !self.changed.is_empty();
        if in_trees || self.grown {
            self.commit().await?;
        }
        let last = self.begin()?;
        let done = self.try_reserve_snap().await;
        self.end(last, done)
    }

    async fn try_reserve_snap(&mut self) -> Result<(), Error> {
        let at = self.store.alloc_block().await?;
        self.store.inc(self.open.root).await?;
        self.store.inc(self.open.details_root).await?;
        let mut copy = self.committed.clone();
        copy.disk_mut().data_space_map_root.fill(0);
        copy.disk_mut().metadata_space_map_root.fill(0);
        // Nothing on disk leads there before the next commit, whose flush makes it durable.
        let written = self.io.write(vec![(at, copy.sealed(at))]).await;
        written.map_err(udm_pdata::Error::Write)?;
        self.open.held_root = at;
        Ok(())
    }

    /// Gives the metadata snapshot up. Commit afterwards. Cost: what only the snapshot still refers to is deleted,
    /// about 5 µs a leaf.
    ///
    /// # Errors
    /// [`Error::NoSnap`], those beneath.
    pub async fn release_snap(&mut self) -> Result<(), Error> {
        let last = self.begin()?;
        let done = self.try_release_snap().await;
        self.end(last, done)
    }

    async fn try_release_snap(&mut self) -> Result<(), Error> {
        let held = self.snap_root().ok_or(Error::NoSnap)?;
        let block = self.io.read(held, Block::zeroed()).await;
        let block = block.map_err(|error| udm_pdata::Error::Read { block: held, error })?;
        let superblock = Superblock::read(block, held)?;
        self.delete_upper(superblock.disk().data_mapping_root.get()).await?;
        let mut details = btree::Deletion::<DiskDetails>::new(superblock.disk().device_details_root.get());
        while !details.step(&mut self.store, LEAVES).await? {}
        self.store.dec(held).await?;
        self.open.held_root = 0;
        Ok(())
    }

    /// Drops a reference to an upper tree; with the last one, those to the trees beneath.
    async fn delete_upper(&mut self, mut root: u64) -> Result<(), Error> {
        if self.store.ref_count(root).await? == 1 {
            // Whatever is shared on the way is copied, and so counted, before an entry goes: each entry is this tree's
            // own then.
            while let Some((dev, Root(_))) = btree::lookup_ge(&mut self.store, root, 0).await? {
                let removed = btree::remove(&mut self.store, &mut root, dev).await?;
                let Root(lower) = removed.expect("it was just found");
                let mut lower = btree::Deletion::<BlockTime>::new(lower);
                while !lower.step(&mut self.store, LEAVES).await? {}
            }
        }
        self.store.dec(root).await?;
        Ok(())
    }
}
