//! Devices: making, snapshotting, listing, and what is kept of them in memory.

use udm_pdata::{Root, btree};

use super::{Device, MAX_DEVICE, Metadata, REMAINS};
use crate::thin::error::Error;
use crate::thin::superblock::LOCATION;
use crate::thin::values::{BlockTime, Details, DiskDetails, MAX_TIME};

impl Metadata {
    /// Makes an empty thin device.
    ///
    /// # Errors
    /// [`Error::DeviceExists`], [`Error::DeviceId`], those beneath.
    pub async fn create_thin(&mut self, dev: u32) -> Result<(), Error> {
        let last = self.begin()?;
        let done = self.try_create_thin(dev).await;
        self.end(last, done)
    }

    async fn try_create_thin(&mut self, dev: u32) -> Result<(), Error> {
        self.check_unused(dev).await?;
        let root = btree::empty::<BlockTime>(&mut self.store).await?;
        self.set_root(dev, root).await?;
        let details = self.new_details();
        self.add(dev, details, root).await
    }

    /// Makes `dev` a snapshot of `origin`. From here on every block that either has is shared.
    ///
    /// # Errors
    /// [`Error::DeviceExists`], [`Error::NoDevice`], [`Error::DeviceId`], [`Error::Clock`], those beneath.
    pub async fn create_snap(&mut self, dev: u32, origin: u32) -> Result<(), Error> {
        let last = self.begin()?;
        let done = self.try_create_snap(dev, origin).await;
        self.end(last, done)
    }

    async fn try_create_snap(&mut self, dev: u32, origin: u32) -> Result<(), Error> {
        self.check_unused(dev).await?;
        let Device { root, .. } = self.device(origin).await?;
        // The kernel's clock runs on, into the bits of the block numbers.
        if self.open.time >= MAX_TIME {
            return Err(Error::Clock);
        }
        self.store.inc(root).await?;
        self.set_root(dev, root).await?;
        self.open.time += 1;
        let time = self.open.time;
        let from = self.devices.get_mut(&origin).expect("it was loaded above");
        from.details.snapshotted_time = time;
        let mapped_blocks = from.details.mapped_blocks;
        let snapshotted = from.details;
        self.changed.insert(origin);
        self.set_details(origin, snapshotted).await?;
        let details = Details { mapped_blocks, ..self.new_details() };
        self.add(dev, details, root).await
    }

    fn new_details(&self) -> Details {
        let (time, transaction_id) = (self.open.time, self.open.trans_id);
        Details { mapped_blocks: 0, transaction_id, creation_time: time, snapshotted_time: time }
    }

    /// A device that was just made: its way in the upper tree was changed, so it is the transaction's own.
    async fn add(&mut self, dev: u32, details: Details, root: u64) -> Result<(), Error> {
        self.devices.insert(dev, Device { details, root, owned_in: self.transaction });
        self.changed.insert(dev);
        self.set_details(dev, details).await
    }

    async fn check_unused(&mut self, dev: u32) -> Result<(), Error> {
        if dev > MAX_DEVICE {
            return Err(Error::DeviceId(dev.into()));
        }
        match self.device(dev).await {
            Err(Error::NoDevice(_)) => Ok(()),
            Err(error) => Err(error),
            Ok(_) => Err(Error::DeviceExists(dev)),
        }
    }

    /// A device's details as they stand in the open transaction.
    ///
    /// # Errors
    /// [`Error::NoDevice`], those beneath.
    pub async fn details(&mut self, dev: u32) -> Result<Details, Error> {
        self.check()?;
        Ok(self.device(dev).await?.details)
    }

    /// All devices, by id, as they stand in the open transaction; not what deleted ones have left. Reads the whole
    /// details tree: 126 devices a block.
    ///
    /// # Errors
    /// Those beneath; [`Error::DeviceId`] for an id that no device can have.
    pub async fn devices(&mut self) -> Result<Vec<(u32, Details)>, Error> {
        self.check()?;
        let mut devices = std::collections::BTreeMap::new();
        let mut walk = btree::Walk::<DiskDetails>::new(self.open.details_root, 0..=u64::MAX);
        while let Some(entries) = walk.next(&mut self.store).await? {
            for (id, details) in entries {
                let dev = u32::try_from(*id).map_err(|_| Error::DeviceId(*id))?;
                devices.insert(dev, Details::from(*details));
            }
        }
        devices.extend(self.devices.iter().map(|(dev, device)| (*dev, device.details)));
        devices.retain(|dev, _| *dev < REMAINS);
        Ok(devices.into_iter().collect())
    }

    /// Forgets what is kept of a device that nobody uses any more, also that changes to it were aborted. Uncommitted
    /// changes are kept.
    pub fn close_device(&mut self, dev: u32) {
        self.aborted.remove(&dev);
        if !self.changed.contains(&dev) {
            self.devices.remove(&dev);
        }
    }

    /// The device, from memory or from disk.
    pub(super) async fn device(&mut self, dev: u32) -> Result<Device, Error> {
        if let Some(device) = self.devices.get(&dev) {
            return Ok(*device);
        }
        let details = btree::lookup::<DiskDetails>(&mut self.store, self.open.details_root, dev.into()).await?;
        let Some(details) = details else { return Err(Error::NoDevice(dev)) };
        let Some(Root(root)) = btree::lookup(&mut self.store, self.open.root, dev.into()).await? else {
            let what = format!("it has details but no mappings in the tree at block {}", self.open.root);
            return Err(Error::Details { dev, what });
        };
        if root == LOCATION {
            return Err(Error::Details { dev, what: "the root of its mappings is block 0, the superblock".into() });
        }
        let device = Device { details: details.into(), root, owned_in: 0 };
        self.devices.insert(dev, device);
        Ok(device)
    }

    /// The device, to be changed: what the upper tree shares with a metadata snapshot on the way to it is copied, and
    /// so what it refers to counted, before anything beneath moves. So is the way to its details, which the commit then
    /// changes in place: what it takes is taken now, when that can be refused.
    pub(super) async fn own(&mut self, dev: u32) -> Result<Device, Error> {
        let mut device = self.device(dev).await?;
        if device.owned_in != self.transaction {
            self.set_root(dev, device.root).await?;
            self.set_details(dev, device.details).await?;
            device.owned_in = self.transaction;
            self.devices.insert(dev, device);
        }
        Ok(device)
    }

    /// Writes a device's root to the upper tree. Nothing is counted: the tree's reference moved with the root.
    pub(super) async fn set_root(&mut self, dev: u32, root: u64) -> Result<(), Error> {
        btree::insert(&mut self.store, &mut self.open.root, dev.into(), Root(root)).await?;
        Ok(())
    }

    /// Writes a device's details to their tree.
    pub(super) async fn set_details(&mut self, dev: u32, details: Details) -> Result<(), Error> {
        btree::insert(&mut self.store, &mut self.open.details_root, dev.into(), DiskDetails::from(details)).await?;
        Ok(())
    }

    /// Keeps what a change made of a device's root and of its number of mappings.
    pub(super) async fn keep(&mut self, dev: u32, root: u64, mapped_blocks: u64) -> Result<(), Error> {
        let device = self.devices.get_mut(&dev).expect("it was owned");
        self.changed.insert(dev);
        device.details.mapped_blocks = mapped_blocks;
        if std::mem::replace(&mut device.root, root) != root {
            self.set_root(dev, root).await?;
        }
        Ok(())
    }
}
