//! Changes that find too few metadata blocks, while others have something under way: nothing is lost but that change.

use super::pools::*;
use super::rig::*;
use std::future::ready;
use std::sync::{Arc, Mutex};
use udm_base::{Errno, Sector, Sectors};
use udm_core::*;
use udm_formats::thin::{Geometry, Metadata, Options};
use udm_io::*;
use udm_pdata::layout::ENTRIES_PER_BITMAP;
use udm_pdata::{BLOCK_SIZE, Block, BlockIo, IoFuture, block_on};

/// Bitmaps of the data: more than the most blocks whose counts one ordinary change may change.
const BITMAPS: u64 = 300;
const DATA_BLOCKS: u64 = BITMAPS * ENTRIES_PER_BITMAP;
const METADATA_BLOCKS: u64 = 1024;

/// Metadata that are made without a pool.
struct Image(Mutex<Vec<u8>>);

impl Image {
    fn put(&self, at: u64, block: &Block) {
        let at = at as usize * BLOCK_SIZE;
        self.0.lock().unwrap()[at..at + BLOCK_SIZE].copy_from_slice(&block.0);
    }
}

impl BlockIo for Image {
    fn blocks(&self) -> u64 {
        METADATA_BLOCKS
    }
    fn read(&self, at: u64, mut into: Box<Block>) -> IoFuture<'_, Box<Block>> {
        let at = at as usize * BLOCK_SIZE;
        into.0.copy_from_slice(&self.0.lock().unwrap()[at..at + BLOCK_SIZE]);
        Box::pin(ready(Ok(into)))
    }
    fn write(&self, blocks: Vec<(u64, Box<Block>)>) -> IoFuture<'_, Vec<(u64, Box<Block>)>> {
        blocks.iter().for_each(|(at, block)| self.put(*at, block));
        Box::pin(ready(Ok(blocks)))
    }
    fn flush(&self) -> IoFuture<'_, ()> {
        Box::pin(ready(Ok(())))
    }
    fn write_fua(&self, at: u64, block: Box<Block>) -> IoFuture<'_, Box<Block>> {
        self.put(at, &block);
        Box::pin(ready(Ok(block)))
    }
}

/// What has the data blocks of which each is counted in another bitmap.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Scattered {
    /// Volume 1.
    Volume,
    /// Volume 1, after what one step of a deletion takes.
    End,
    /// The metadata snapshot, and no volume any more.
    Snapshot,
}

/// Metadata with volumes 0, which is empty, and 1; of which about `free` blocks are left to whoever changes something.
fn image(scattered: Scattered, free: u64) -> Vec<u8> {
    let io = Arc::new(Image(Mutex::new(vec![0; METADATA_BLOCKS as usize * BLOCK_SIZE])));
    block_on(async {
        let geometry = Geometry { data_block: Sectors::new(BLOCK), data_blocks: DATA_BLOCKS };
        let mut m = Metadata::format(io.clone(), &geometry, Options::default()).await?;
        m.create_thin(0).await?;
        m.create_thin(1).await?;
        let before = if scattered == Scattered::End { 5000 } else { 0 };
        for block in 0..before {
            m.inc_data(block + 1000..block + 1001).await?;
            m.insert(1, block, block + 1000).await?;
        }
        for i in 0..BITMAPS {
            let data = i * ENTRIES_PER_BITMAP + 7;
            m.inc_data(data..data + 1).await?;
            m.insert(1, before + i, data).await?;
        }
        m.commit().await?;
        if scattered == Scattered::Snapshot {
            m.reserve_snap().await?;
            m.remove_range(1, 0, u64::MAX).await?;
            m.commit().await?;
        }
        let mut id = 100;
        while m.metadata_free() > free {
            m.create_thin(id).await?;
            id += 1;
            // What it replaces is to be had again.
            m.commit().await?;
        }
        Ok::<(), udm_formats::thin::Error>(())
    })
    .unwrap();
    let bytes = io.0.lock().unwrap();
    bytes.clone()
}

struct Short {
    rig: Rig,
    data: Arc<Disk>,
    meta: Arc<MappedDevice>,
    md: Arc<MappedDevice>,
    thin: Arc<MappedDevice>,
}

impl Short {
    /// A pool on such metadata, whose device can grow, with volume 0 active.
    fn new(scattered: Scattered, free: u64) -> Self {
        let rig = Rig::default();
        let data = rig.disk("data", DATA_BLOCKS * BLOCK);
        let below = rig.disk("metabelow", 8 * METADATA_BLOCKS * 8);
        let io = BlockingIo::new(&rig.domain, below).unwrap();
        io.write(Sector::ZERO, &image(scattered, free), OpFlags::NONE).unwrap();
        let meta = rig.device("meta", &format!("0 {} linear metabelow 0", METADATA_BLOCKS * 8));
        let table = format!("0 {} thin-pool {{meta}} data {BLOCK} 0", DATA_BLOCKS * BLOCK);
        let md = rig.device("pool", &table);
        let thin = rig.device("thin", &format!("0 {} thin {{pool}} 0", 16 * BLOCK));
        Self { rig, data, meta, md, thin }
    }

    fn message(&self, text: &str) -> Result<(), Error> {
        let words: Vec<&str> = text.split(' ').collect();
        self.md.message(Sector::ZERO, &words).map(drop)
    }

    fn hold_writes(&self) {
        *self.data.hold_if.lock().unwrap() = Some(Box::new(|bio| bio.op().is_write()));
    }

    fn go_on(&self) {
        *self.data.hold_if.lock().unwrap() = None;
        self.data.release();
    }

    fn grow_metadata(&self) {
        self.rig.reload(&self.meta, &format!("0 {} linear metabelow 0", 2 * METADATA_BLOCKS * 8));
        suspend(&self.md);
        resume(&self.md);
        assert!(info(&self.md).contains(" rw "), "{}", info(&self.md));
    }

    fn used(&self) -> u64 {
        info(&self.md).split(' ').nth(2).unwrap().split_once('/').unwrap().0.parse().unwrap()
    }

    /// Removes everything, and has thin_check look.
    fn check(self) {
        let Self { rig, md, thin, meta, .. } = self;
        for md in [thin, md] {
            rig.registry.remove(&md, false).unwrap();
        }
        check_metadata_on(&rig, meta);
    }
}

/// How many free blocks there are where an ordinary change has room and one of those here has not, somewhere in
/// between.
const FREE: std::ops::Range<u64> = 230..300;

/// Runs `change` with ever more free blocks, on pools where it was refused for want of them and that serve writes
/// afterwards.
fn where_it_ran_out(scattered: Scattered, change: impl Fn(&Short) -> bool) {
    let ran_out = FREE.step_by(5).filter(|free| change(&Short::new(scattered, *free))).count();
    assert!(ran_out > 0, "there was room each time, or none for anything");
}

/// Whether a message was refused for want of metadata blocks, by a pool that goes on.
fn is_refused(short: &Short, message: &str) -> bool {
    let refused = short.message(message).is_err_and(|e| e.errno == Errno::ENOSPC);
    refused && info(&short.md).contains(" rw ")
}

/// Trap: what is under way has its data block from a transaction that is aborted.
#[test]
fn a_write_under_way_does_not_pay_for_a_release_that_ran_out() {
    where_it_ran_out(Scattered::Snapshot, |short| {
        let mut client = Client::new(&short.rig, &short.thin);
        short.hold_writes();
        let whole = client.write(0, pattern(0, BLOCK, 1), OpFlags::NONE);
        let part = client.write(BLOCK, pattern(BLOCK, 8, 1), OpFlags::FUA);
        assert_eq!((client.status(whole), client.status(part)), (None, None));
        let ran_out = is_refused(short, "release_metadata_snap");
        short.go_on();
        let both = (client.wait(whole), client.wait(part));
        if ran_out {
            assert_eq!(both, (Status::Ok, Status::Ok), "{}", info(&short.md));
            let io = short.rig.io(&short.thin);
            io.flush().unwrap();
            assert!(read(&io, 0, BLOCK + 8) == pattern(0, BLOCK + 8, 1));
        }
        ran_out
    });
}

/// Trap: a deletion changes far more counts than a block that is mapped does, and has room if that would have.
#[test]
fn what_was_written_does_not_pay_for_a_deletion_that_ran_out() {
    where_it_ran_out(Scattered::Volume, |short| {
        let io = short.rig.io(&short.thin);
        write(&io, 0, 8, 1);
        let ran_out = is_refused(short, "delete 1");
        assert!(read(&io, 0, 8) == pattern(0, 8, 1), "{}", info(&short.md));
        io.flush().unwrap();
        ran_out
    });
}

/// What is left of a volume that was deleted is given back when there is room for it.
#[test]
fn a_deletion_that_ran_out_goes_on_when_there_is_more() {
    let mut ran_out = 0;
    for free in FREE.step_by(10) {
        let short = Short::new(Scattered::End, free);
        let refused = short.message("delete 1").is_err_and(|e| e.errno == Errno::ENOSPC);
        if refused && short.used() > 0 {
            ran_out += 1;
            short.grow_metadata();
        }
        assert!((0..10_000).any(|_| short.used() == 0), "{}", info(&short.md));
        short.check();
    }
    assert!(ran_out > 0, "there was room each time");
}
