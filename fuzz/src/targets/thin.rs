//! Thin metadata. The superblock: whatever stands in it, it is refused with its place or comes back byte for byte. A
//! whole pool: whatever stands in its blocks, with checksums that hold, no operation panics, hangs or takes memory
//! without bound.

use std::future::ready;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

use udm_base::Sectors;
use udm_formats::thin::superblock::{LOCATION, MAX_DATA_BLOCK, MIN_DATA_BLOCK, SALT, Superblock};
use udm_formats::thin::{Error, Geometry, Metadata, Options};
use udm_pdata::layout::{self, checksum};
use udm_pdata::{BLOCK_SIZE, Block, BlockIo, IoError, IoFuture, Kind, block_on};

/// Numbers that the fields have.
pub const WORDS: &[&[u8]] = &[
    &27_022_010u64.to_le_bytes(),
    &[1, 0, 0, 0],
    &[2, 0, 0, 0],
    &[8, 0, 0, 0],
    &[128, 0, 0, 0],
    &2_097_152u32.to_le_bytes(),
    &[0xff; 8],
];

/// Reads `data`, zeroes behind it, as a superblock; once as it is, once with a checksum that holds.
pub fn fuzz_thin_superblock(data: &[u8]) {
    let mut block = Block::zeroed();
    let len = data.len().min(BLOCK_SIZE);
    block.0[..len].copy_from_slice(&data[..len]);
    read(block.clone());
    let sum = checksum(&block, SALT);
    block.0[..4].copy_from_slice(&sum.to_le_bytes());
    read(block);
}

fn read(block: Box<Block>) {
    match Superblock::read(block.clone(), LOCATION) {
        Ok(superblock) => {
            let size = superblock.data_block();
            assert!((MIN_DATA_BLOCK..=MAX_DATA_BLOCK).contains(&size), "{size:?}");
            assert!(superblock.sealed(LOCATION).0 == block.0, "what nobody changed stays");
            let moved = superblock.sealed(7);
            assert!(Superblock::read(moved.clone(), 7).is_ok() && Superblock::read(moved, LOCATION).is_err());
        }
        Err(Error::Superblock { block, found, expected, .. }) => assert!(block == LOCATION && found != expected),
        Err(other) => panic!("not about a field: {other}"),
    }
}

/// Metadata in memory.
#[derive(Clone)]
struct Memory(Arc<Mutex<Vec<Block>>>);

impl Memory {
    fn blocks(&self) -> MutexGuard<'_, Vec<Block>> {
        self.0.lock().expect("nobody panics with it")
    }
}

impl BlockIo for Memory {
    fn blocks(&self) -> u64 {
        Self::blocks(self).len() as u64
    }

    fn read(&self, at: u64, mut into: Box<Block>) -> IoFuture<'_, Box<Block>> {
        let done = match Self::blocks(self).get(at as usize) {
            Some(block) => {
                into.0 = block.0;
                Ok(into)
            }
            None => Err(IoError::PastEnd),
        };
        Box::pin(ready(done))
    }

    fn write(&self, blocks: Vec<(u64, Box<Block>)>) -> IoFuture<'_, Vec<(u64, Box<Block>)>> {
        for (at, block) in &blocks {
            Self::blocks(self)[*at as usize] = (**block).clone();
        }
        Box::pin(ready(Ok(blocks)))
    }

    fn flush(&self) -> IoFuture<'_, ()> {
        Box::pin(ready(Ok(())))
    }

    fn write_fua(&self, at: u64, block: Box<Block>) -> IoFuture<'_, Box<Block>> {
        Self::blocks(self)[at as usize] = (*block).clone();
        Box::pin(ready(Ok(block)))
    }
}

const GEOMETRY: Geometry = Geometry { data_block: Sectors::new(128), data_blocks: 3000 };

/// A healthy pool: two devices, a snapshot, data blocks with many references, a metadata snapshot.
fn pool() -> &'static [Block] {
    static POOL: OnceLock<Vec<Block>> = OnceLock::new();
    POOL.get_or_init(|| {
        let memory = Memory(Arc::new(Mutex::new(vec![(*Block::zeroed()).clone(); 96])));
        block_on(fill(memory.clone())).expect("a healthy pool");
        memory.blocks().clone()
    })
}

async fn fill(memory: Memory) -> Result<(), Error> {
    let mut pool = Metadata::format(Arc::new(memory), &GEOMETRY, Options::default()).await?;
    for dev in [1, 7] {
        pool.create_thin(dev).await?;
        for block in 0..300 {
            let data = pool.alloc_data_block().await?.expect("there are enough");
            pool.insert(dev, block * u64::from(dev), data).await?;
        }
    }
    pool.commit().await?;
    // Each writes to the same leaf, so that its data blocks get one reference more each time.
    for snap in 10..14 {
        pool.create_snap(snap, 1).await?;
        let data = pool.alloc_data_block().await?.expect("there are enough");
        pool.insert(snap, 3, data).await?;
    }
    pool.reserve_snap().await?;
    pool.insert(1, 1000, 2999).await?;
    pool.commit().await
}

/// Patches a pool by `data`: the first byte says what is done to it afterwards, then come four bytes a patch: a block,
/// an offset, a byte.
pub fn fuzz_thin_pool(data: &[u8]) {
    let mut blocks = pool().to_vec();
    let used: Vec<usize> = (0..blocks.len()).filter(|at| blocks[*at].0[..4] != [0; 4]).collect();
    let Some((first, patches)) = data.split_first() else { return };
    for patch in patches.chunks_exact(4).take(64) {
        let at = used[usize::from(patch[0]) % used.len()] as u64;
        let block = &mut blocks[at as usize];
        let offset = match (usize::from(patch[1]), usize::from(patch[2])) {
            // The head, the first keys, the first values.
            (low, high @ ..64) => low + high / 32 * 32 * 64,
            (low, high) => low | high << 8,
        };
        let kind =
            [Kind::Node, Kind::Bitmap, Kind::Index].into_iter().find(|kind| layout::check(block, *kind, at).is_ok());
        let superblock = checksum(block, SALT).to_le_bytes() == block.0[..4];
        block.0[offset % BLOCK_SIZE] = patch[3];
        match kind {
            Some(kind) => layout::seal(block, kind, at),
            None if superblock => {
                let sum = checksum(block, SALT);
                block.0[..4].copy_from_slice(&sum.to_le_bytes());
            }
            None => {}
        }
    }
    let memory = Memory(Arc::new(Mutex::new(blocks)));
    if let Ok(mut pool) = block_on(Metadata::open(Arc::new(memory), &GEOMETRY, Options::default())) {
        block_on(use_up(&mut pool, usize::from(*first)));
    }
}

/// Asks for everything. What fails is aborted, and the next is asked for.
async fn use_up(pool: &mut Metadata, first: usize) {
    let devices = pool.devices().await.unwrap_or_default();
    for (dev, _) in devices.iter().cycle().skip(first % 8).take(2) {
        _ = pool.highest_mapped(*dev).await;
        for block in [3, u64::MAX] {
            _ = pool.find(*dev, block).await;
        }
        let (mut at, mut leaf) = (0, Vec::new());
        while let Ok(range) = pool.leaf(*dev, at, &mut leaf).await {
            assert!(range.contains(&at) || at == u64::MAX, "{range:?} around {at}");
            if range.end == u64::MAX {
                break;
            }
            at = range.end;
        }
        let mut at = 0;
        while let Ok(Some(run)) = pool.mapped_range(*dev, at, u64::MAX).await {
            assert!(run.from >= at && run.to > run.from, "{run:?} from {at}");
            at = run.to;
        }
    }
    for round in [first, first / 8, first / 64].map(|n| n % 8) {
        let dev = devices.get(round).map_or(1, |(dev, _)| *dev);
        let done = async {
            match round {
                0 => pool.create_snap(20, dev).await?,
                1 => _ = pool.remove_range(dev, 2, 290).await?,
                2 => pool.release_snap().await?,
                3 => pool.create_thin(21).await?,
                4 => pool.dec_data(100..400).await?,
                5 => pool.resize_data(40_000).await?,
                6 => pool.reserve_snap().await?,
                _ => {
                    let mut deletion = pool.delete(dev).await?;
                    while !deletion.step(pool).await? {}
                }
            }
            for block in [0, 5, 1 << 33] {
                if let Some(data) = pool.alloc_data_block().await? {
                    pool.insert(dev, block, data).await?;
                }
            }
            pool.commit().await
        };
        if done.await.is_err() && pool.is_in_doubt() && pool.abort().await.is_err() {
            return;
        }
    }
}
