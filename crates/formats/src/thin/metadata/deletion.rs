//! Deleting a device, a part at a time.

use udm_pdata::{Root, btree};

use super::{Device, Metadata};
use crate::thin::error::Error;
use crate::thin::values::DiskDetails;

/// How many leaves a step removes: some thousand mappings, about 0.1 ms when they are in memory.
pub(super) const LEAVES: usize = 16;

/// A device that is being deleted, so that a big one does not hold everybody else up.
///
/// Between two steps the metadata are sound: the device is there with fewer mappings, and commits may come in between. Nobody
/// else may use it meanwhile. To give it up half-way is to keep the device with what is left of it.
#[derive(Debug)]
pub struct Deletion {
    dev: u32,
    next: u64,
    left: u64,
    all: u64,
}

impl Metadata {
    /// Begins to delete a device, which nobody uses any more. Nothing has changed before the first [`Deletion::step`].
    ///
    /// # Errors
    /// [`Error::NoDevice`], those beneath.
    pub async fn delete(&mut self, dev: u32) -> Result<Deletion, Error> {
        self.check()?;
        let all = self.device(dev).await?.details.mapped_blocks;
        Ok(Deletion { dev, next: 0, left: all, all })
    }

    /// Does away with a device: its details, its entry in the upper tree, and its tree's root.
    async fn forget_device(&mut self, dev: u32) -> Result<(), Error> {
        btree::remove::<DiskDetails>(&mut self.store, &mut self.open.details_root, dev.into()).await?;
        let removed = btree::remove(&mut self.store, &mut self.open.root, dev.into()).await?;
        if let Some(Root(root)) = removed {
            self.store.dec(root).await?;
        }
        self.devices.remove(&dev);
        self.aborted.remove(&dev);
        Ok(())
    }
}

impl Deletion {
    /// Which device.
    pub fn device(&self) -> u32 {
        self.dev
    }

    /// How many mappings are left to remove, and how many there were.
    pub fn progress(&self) -> (u64, u64) {
        (self.left, self.all)
    }

    /// Unmaps some thousand blocks, or does away with the device, whose id is free afterwards. `true` when it is gone: commit, then
    /// answer.
    ///
    /// # Errors
    /// Those beneath.
    pub async fn step(&mut self, metadata: &mut Metadata) -> Result<bool, Error> {
        let last = metadata.begin()?;
        let done = self.try_step(metadata).await;
        metadata.end(last, done)
    }

    async fn try_step(&mut self, metadata: &mut Metadata) -> Result<bool, Error> {
        let Device { root, .. } = metadata.own(self.dev).await?;
        if metadata.store.ref_count(root).await? == 1 {
            let removed = metadata.remove_leaves(self.dev, self.next, u64::MAX, LEAVES).await?;
            self.left = self.left.saturating_sub(removed.entries);
            if let Some(next) = removed.next {
                self.next = next;
                return Ok(false);
            }
        }
        // Somebody else has the whole tree, or it is empty.
        metadata.forget_device(self.dev).await?;
        self.left = 0;
        Ok(true)
    }
}
