//! `udm thin restore`: metadata from thin_dump's XML (`thin_restore`). Trees are built bottom up, each block written
//! once.
//!
//! Nothing is written before the head was read and found possible. Then the superblock goes first, so that a run that
//! is interrupted leaves no metadata rather than half.

use std::collections::BTreeSet;
use std::io::BufRead;
use std::sync::Arc;

use udm_base::Sectors;
use udm_pdata::btree::{self, Builder};
use udm_pdata::{Block, BlockIo, Store, block_on};
use zerocopy::IntoBytes;

use super::emit::{Emit, Head, Run};
use super::tag::{Form, Tag, Tags, bad};
use super::{Error, Progress};
use crate::thin::superblock::{LOCATION, Superblock, VERSION, is_data_block_size};
use crate::thin::{BlockTime, Details, DiskDetails, MAX_DATA_BLOCKS, MAX_TIME};

/// Memory for blocks.
const CACHE: usize = 16 << 20;

/// What to take instead of what the XML says.
#[derive(Clone, Copy, Default, Debug)]
pub struct Overrides {
    /// The transaction id.
    pub transaction: Option<u64>,
    /// Sectors.
    pub data_block_size: Option<u32>,
    /// Data blocks.
    pub data_blocks: Option<u64>,
}

/// What was restored.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Restored {
    /// Thin devices.
    pub devices: u64,
    /// Their mappings.
    pub mappings: u64,
}

/// Writes the pool that `xml` tells to the whole of `io`. `progress` counts bytes of the input. Blocks.
///
/// # Errors
/// When the XML is none, contradicts itself or tells what no pool can be, naming the line; when the metadata do not fit
/// or cannot be written. After an error there is no superblock, unless it was found before anything was written.
pub fn restore(
    io: &Arc<dyn BlockIo>,
    xml: &mut dyn BufRead,
    overrides: Overrides,
    progress: &mut dyn Progress,
) -> Result<Restored, Error> {
    let mut tags = Tags::new(xml);
    let mut restorer = Restorer::new(io, overrides);
    let mut place = Place::Outside;
    let mut tick = 0_u64;
    loop {
        tick += 1;
        if tick.is_multiple_of(1 << 12) {
            progress.at(tags.read, 0);
        }
        let Some(tag) = tags.next()? else { break };
        let line = tag.line;
        // What the parts of a pool themselves say has no line of its own.
        let told = |error| match error {
            Error::Refused(what) => Error::Xml { line, what },
            other => other,
        };
        place = match (place, tag.form, tag.name) {
            (Place::Outside, Form::Open | Form::Empty, "superblock") => {
                restorer.head(&head(&tag)?).map_err(told)?;
                if tag.form == Form::Empty { Place::After } else { Place::Superblock }
            }
            (Place::Superblock, Form::Open | Form::Empty, "device") => {
                let (dev, details) = device(&tag)?;
                restorer.start(dev, details).map_err(told)?;
                if tag.form == Form::Empty {
                    restorer.finish().map_err(told)?;
                    Place::Superblock
                } else {
                    Place::Device
                }
            }
            (Place::Device, Form::Empty | Form::Open, "single_mapping" | "range_mapping") => {
                restorer.map(&run(&tag)?).map_err(told)?;
                if tag.form == Form::Empty { Place::Device } else { Place::Mapping }
            }
            (Place::Mapping, Form::Close, "single_mapping" | "range_mapping") => Place::Device,
            (Place::Device, Form::Close, "device") => {
                restorer.finish().map_err(told)?;
                Place::Superblock
            }
            (Place::Superblock, Form::Close, "superblock") => Place::After,
            (place, form, name) => {
                let slash = if form == Form::Close { "/" } else { "" };
                return bad(tag.line, format!("<{slash}{name}> {}", place.expects()));
            }
        };
    }
    match place {
        Place::After => restorer.commit(),
        Place::Outside => bad(1, "nothing there: expected <superblock>"),
        place => bad(0, format!("the input ends too early: it {}", place.expects())),
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Outside,
    Superblock,
    Device,
    Mapping,
    After,
}

impl Place {
    fn expects(self) -> &'static str {
        match self {
            Self::Outside => "stands where <superblock> was expected",
            Self::Superblock => "stands where <device> or </superblock> was expected",
            Self::Device => "stands where <single_mapping>, <range_mapping> or </device> was expected",
            Self::Mapping => "stands where a mapping's end was expected",
            Self::After => "stands behind </superblock>, where the end was expected",
        }
    }
}

fn head(tag: &Tag<'_>) -> Result<Head, Error> {
    // A metadata snapshot is not in a dump, so that metadata_snap leads nowhere.
    tag.maybe("metadata_snap", u64::MAX)?;
    let u32 = |number: u64| u32::try_from(number).expect("at most as much was asked for");
    Ok(Head {
        uuid: tag.text("uuid")?,
        time: u32(tag.number("time", MAX_TIME.into())?),
        transaction: tag.number("transaction", u64::MAX)?,
        flags: u32(tag.maybe("flags", u32::MAX.into())?.unwrap_or(0)),
        version: u32(tag.maybe("version", VERSION.into())?.unwrap_or(1)),
        data_block_size: u32(tag.number("data_block_size", u32::MAX.into())?),
        data_blocks: tag.number("nr_data_blocks", u64::MAX)?,
    })
}

fn device(tag: &Tag<'_>) -> Result<(u32, Details), Error> {
    let u32 = |number: u64| u32::try_from(number).expect("at most as much was asked for");
    let dev = u32(tag.number("dev_id", u32::MAX.into())?);
    let details = Details {
        mapped_blocks: tag.number("mapped_blocks", u64::MAX)?,
        transaction_id: tag.number("transaction", u64::MAX)?,
        creation_time: u32(tag.number("creation_time", u32::MAX.into())?),
        snapshotted_time: u32(tag.number("snap_time", u32::MAX.into())?),
    };
    Ok((dev, details))
}

fn run(tag: &Tag<'_>) -> Result<Run, Error> {
    let time = u32::try_from(tag.number("time", MAX_TIME.into())?).expect("24 bits");
    let (block, data, len) = if tag.name == "single_mapping" {
        (tag.number("origin_block", u64::MAX)?, tag.number("data_block", u64::MAX)?, 1)
    } else {
        let range = (tag.number("origin_begin", u64::MAX)?, tag.number("data_begin", u64::MAX)?);
        (range.0, range.1, tag.number("length", u64::MAX)?)
    };
    Ok(Run { block, data, len, time })
}

/// A device's mappings: built while their keys rise, inserted one by one from the first on that does not.
enum Tree {
    Building(Builder<BlockTime>),
    Inserting(u64),
}

struct Device {
    dev: u32,
    details: Details,
    tree: Tree,
    /// The key behind the last one.
    next: u64,
    mapped: u64,
}

struct Pool {
    store: Store,
    superblock: Superblock,
    data_blocks: u64,
    /// Sorted by device: the trees of devices are written at the end.
    devices: Vec<(u32, Details, u64)>,
    ids: BTreeSet<u32>,
    open: Option<Device>,
    restored: Restored,
}

/// Makes metadata of what it is told; what a dump emits, it takes.
pub(super) struct Restorer<'a> {
    io: &'a Arc<dyn BlockIo>,
    overrides: Overrides,
    pool: Option<Pool>,
}

impl<'a> Restorer<'a> {
    pub(super) fn new(io: &'a Arc<dyn BlockIo>, overrides: Overrides) -> Self {
        Self { io, overrides, pool: None }
    }

    fn head(&mut self, head: &Head) -> Result<(), Error> {
        let size = self.overrides.data_block_size.unwrap_or(head.data_block_size);
        if !is_data_block_size(Sectors::new(size.into())) {
            let what = format!("data_block_size is {size}, expected a multiple of 128 sectors from 128 to 2097152");
            return Err(Error::Refused(what));
        }
        let data_blocks = self.overrides.data_blocks.unwrap_or(head.data_blocks);
        if data_blocks > MAX_DATA_BLOCKS {
            return Err(Error::Refused(format!("nr_data_blocks is {data_blocks}, expected {MAX_DATA_BLOCKS} at most")));
        }
        if !(1..=VERSION).contains(&head.version) {
            return Err(Error::Refused(format!("version is {}, expected 1 or 2", head.version)));
        }
        let options = udm_pdata::Options { cache_bytes: CACHE, read_only: false };
        let store = Store::create(self.io.clone(), 1, options)?;
        let blocks = store.nr_blocks();
        let mut superblock = Superblock::new(Sectors::new(size.into()), blocks);
        let disk = superblock.disk_mut();
        disk.time.set(head.time);
        disk.trans_id.set(self.overrides.transaction.unwrap_or(head.transaction));
        disk.flags.set(head.flags);
        disk.version.set(head.version);
        let uuid = head.uuid.as_bytes();
        let len = uuid.len().min(disk.uuid.len());
        disk.uuid[..len].copy_from_slice(&uuid[..len]);

        block_on(self.io.write_fua(LOCATION, Block::zeroed())).map_err(udm_pdata::Error::Write)?;
        let (ids, restored) = (BTreeSet::new(), Restored::default());
        let mut pool = Pool { store, superblock, data_blocks, devices: Vec::new(), ids, open: None, restored };
        block_on(pool.store.create_data(data_blocks))?;
        self.pool = Some(pool);
        Ok(())
    }

    fn pool(&mut self) -> &mut Pool {
        self.pool.as_mut().expect("the head comes first")
    }

    fn start(&mut self, dev: u32, details: Details) -> Result<(), Error> {
        let pool = self.pool();
        if !pool.ids.insert(dev) {
            return Err(Error::Refused(format!("device {dev} is there twice")));
        }
        pool.open = Some(Device { dev, details, tree: Tree::Building(Builder::new()), next: 0, mapped: 0 });
        Ok(())
    }

    fn map(&mut self, run: &Run) -> Result<(), Error> {
        let Pool { store, data_blocks, open, .. } = self.pool();
        let device = open.as_mut().expect("the device comes first");
        let Run { block, data, len, time } = *run;
        if len == 0 {
            return Err(Error::Refused("a mapping of length 0".into()));
        }
        let end = block.checked_add(len).filter(|_| data.checked_add(len).is_some_and(|end| end <= *data_blocks));
        let Some(end) = end else {
            let what = format!(
                "data blocks from {data} on, {len} of them, lie past the end of the data device at {data_blocks}"
            );
            return Err(Error::Refused(what));
        };
        block_on(async {
            store.data_inc(data..data + len).await?;
            if block < device.next
                && let Tree::Building(builder) = &mut device.tree
            {
                device.tree = Tree::Inserting(std::mem::take(builder).finish(store).await?);
            }
            for i in 0..len {
                let value = BlockTime { block: data + i, time };
                match &mut device.tree {
                    Tree::Building(builder) => builder.push(store, block + i, value).await?,
                    Tree::Inserting(root) => {
                        if btree::insert(store, root, block + i, value).await?.is_some() {
                            let what = format!("block {} of device {} is mapped twice", block + i, device.dev);
                            return Err(Error::Refused(what));
                        }
                    }
                }
            }
            device.next = device.next.max(end);
            device.mapped += len;
            Ok(())
        })
    }

    fn finish(&mut self) -> Result<(), Error> {
        let Pool { store, open, devices, restored, .. } = self.pool();
        let device = open.take().expect("the device comes first");
        let root = match device.tree {
            Tree::Building(_) if device.mapped == 0 => block_on(btree::empty::<BlockTime>(store))?,
            Tree::Building(builder) => block_on(builder.finish(store))?,
            Tree::Inserting(root) => root,
        };
        // As thin_restore: what is mapped is counted, not believed.
        let details = Details { mapped_blocks: device.mapped, ..device.details };
        devices.push((device.dev, details, root));
        restored.devices += 1;
        restored.mappings += device.mapped;
        Ok(())
    }

    pub(super) fn commit(self) -> Result<Restored, Error> {
        let Some(pool) = self.pool else { return Err(Error::Refused("there is no pool".into())) };
        let Pool { mut store, mut superblock, mut devices, restored, .. } = pool;
        devices.sort_by_key(|(dev, ..)| *dev);
        block_on(async {
            let (mut details, mut roots) = (Builder::<DiskDetails>::new(), Builder::<u64>::new());
            for (dev, device, root) in &devices {
                details.push(&mut store, u64::from(*dev), (*device).into()).await?;
                roots.push(&mut store, u64::from(*dev), *root).await?;
            }
            let (details, roots) = match devices.is_empty() {
                true => (btree::empty::<DiskDetails>(&mut store).await?, btree::empty::<u64>(&mut store).await?),
                false => (details.finish(&mut store).await?, roots.finish(&mut store).await?),
            };
            let maps = store.prepare_commit().await?;
            let disk = superblock.disk_mut();
            disk.device_details_root.set(details);
            disk.data_mapping_root.set(roots);
            let data = maps.data.expect("data blocks are counted");
            disk.data_space_map_root[..data.as_bytes().len()].copy_from_slice(data.as_bytes());
            disk.metadata_space_map_root[..maps.metadata.as_bytes().len()].copy_from_slice(maps.metadata.as_bytes());
            store.commit(LOCATION, superblock.sealed(LOCATION)).await?;
            Ok(restored)
        })
    }
}

fn to_io(error: Error) -> std::io::Error {
    std::io::Error::other(error)
}

impl Emit for Restorer<'_> {
    fn begin(&mut self, head: &Head) -> std::io::Result<()> {
        Restorer::head(self, head).map_err(to_io)
    }

    fn device(&mut self, dev: u32, details: &Details) -> std::io::Result<()> {
        self.start(dev, *details).map_err(to_io)
    }

    fn run(&mut self, run: &Run) -> std::io::Result<()> {
        self.map(run).map_err(to_io)
    }

    fn end_device(&mut self) -> std::io::Result<()> {
        self.finish().map_err(to_io)
    }

    fn end(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
