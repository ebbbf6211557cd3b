//! Deleting a device: its id at once, what it has mapped a part at a time.

use udm_pdata::{Root, btree};

use super::{Device, MAX_DEVICE, Metadata};
use crate::thin::error::Error;
use crate::thin::values::DiskDetails;

/// How many leaves a step removes: some thousand mappings, about 0.1 ms when they are in memory.
pub(super) const LEAVES: usize = 16;

/// Ids from here on, which no device can have, are those of *remains*: what deleted devices have not given back yet. To
/// the format, and so to the kernel and its tools, they are devices that nobody asks for.
pub const REMAINS: u32 = MAX_DEVICE + 1;

/// What a deleted device has left, on its way out: so that a big one does not hold everybody else up.
///
/// Between two steps the metadata are sound, and commits may come in between. Who gives it up half-way, or whose power
/// goes, finds what is left with [`Metadata::remains`].
#[derive(Debug)]
pub struct Deletion {
    /// Under which id it is kept; `None` when nothing is left.
    id: Option<u32>,
    next: u64,
    left: u64,
    all: u64,
}

impl Metadata {
    /// Deletes a device, which nobody uses any more: from here on there is none of this id. What it has mapped, if that
    /// is more than some thousand blocks, is left for the [`Deletion`] to give back.
    ///
    /// # Errors
    /// [`Error::NoDevice`], those beneath.
    pub async fn delete(&mut self, dev: u32) -> Result<Deletion, Error> {
        self.check()?;
        if dev >= REMAINS {
            return Err(Error::NoDevice(dev));
        }
        let all = self.device(dev).await?.details.mapped_blocks;
        let id = self.free_remains().await?;
        let last = self.begin()?;
        let done = self.try_delete(Deletion { id: Some(dev), next: 0, left: all, all }, dev, id).await;
        self.end(last, done)
    }

    async fn try_delete(&mut self, mut deletion: Deletion, dev: u32, id: u32) -> Result<Deletion, Error> {
        if !deletion.try_step(self).await? {
            self.set_aside(dev, id).await?;
            deletion.id = Some(id);
        }
        Ok(deletion)
    }

    /// What an earlier deletion has left, if there is anything: some of it, the first.
    ///
    /// # Errors
    /// Those beneath.
    pub async fn remains(&mut self) -> Result<Option<Deletion>, Error> {
        self.check()?;
        let first = btree::lookup_ge::<Root>(&mut self.store, self.open.root, REMAINS.into()).await?;
        // What lies beyond is nobody's that we know.
        let Some(id) = first.and_then(|(id, _)| u32::try_from(id).ok()) else { return Ok(None) };
        let left = self.device(id).await?.details.mapped_blocks;
        Ok(Some(Deletion { id: Some(id), next: 0, left, all: left }))
    }

    /// An id for what is to be left of a device.
    async fn free_remains(&mut self) -> Result<u32, Error> {
        let last = btree::lookup_le::<Root>(&mut self.store, self.open.root, u64::MAX).await?;
        let next = last.map_or(0, |(id, _)| id).saturating_add(1).max(REMAINS.into());
        u32::try_from(next).map_err(|_| Error::DeviceId(next))
    }

    /// Gives what is left of a device another id. Nothing is counted: the tree's reference moves with the root.
    async fn set_aside(&mut self, dev: u32, id: u32) -> Result<(), Error> {
        let device = self.own(dev).await?;
        btree::remove::<DiskDetails>(&mut self.store, &mut self.open.details_root, dev.into()).await?;
        btree::remove::<Root>(&mut self.store, &mut self.open.root, dev.into()).await?;
        self.set_root(id, device.root).await?;
        self.devices.remove(&dev);
        self.changed.remove(&dev);
        self.aborted.remove(&dev);
        self.devices.insert(id, device);
        self.changed.insert(id);
        Ok(())
    }

    /// Does away with a device: its details, its entry in the upper tree, and its tree's root.
    async fn forget_device(&mut self, dev: u32) -> Result<(), Error> {
        btree::remove::<DiskDetails>(&mut self.store, &mut self.open.details_root, dev.into()).await?;
        let removed = btree::remove(&mut self.store, &mut self.open.root, dev.into()).await?;
        if let Some(Root(root)) = removed {
            self.store.dec(root).await?;
        }
        self.devices.remove(&dev);
        self.changed.remove(&dev);
        self.aborted.remove(&dev);
        Ok(())
    }
}

impl Deletion {
    /// Whether nothing is left.
    pub fn is_over(&self) -> bool {
        self.id.is_none()
    }

    /// How many mappings are left to remove, and how many there were.
    pub fn progress(&self) -> (u64, u64) {
        (self.left, self.all)
    }

    /// Looks at everything from its beginning: an abort may have brought back what earlier steps had removed.
    pub fn begin_again(&mut self) {
        (self.next, self.left) = (0, self.all);
    }

    /// Unmaps some thousand blocks. `true` when nothing is left: commit then.
    ///
    /// # Errors
    /// Those beneath.
    pub async fn step(&mut self, metadata: &mut Metadata) -> Result<bool, Error> {
        if self.is_over() {
            return Ok(true);
        }
        let last = metadata.begin()?;
        let done = self.try_step(metadata).await;
        metadata.end(last, done)
    }

    async fn try_step(&mut self, metadata: &mut Metadata) -> Result<bool, Error> {
        let Some(id) = self.id else { return Ok(true) };
        let Device { root, .. } = metadata.own(id).await?;
        if metadata.store.ref_count(root).await? == 1 {
            let removed = metadata.remove_leaves(id, self.next, u64::MAX, LEAVES).await?;
            self.left = self.left.saturating_sub(removed.entries);
            if let Some(next) = removed.next {
                self.next = next;
                return Ok(false);
            }
        }
        // Somebody else has the whole tree, or it is empty.
        metadata.forget_device(id).await?;
        (self.id, self.left) = (None, 0);
        Ok(true)
    }
}
