//! Metadata of which some bytes are not what they were, under checksums that are right: every reader has to find it, or
//! to live with it, without a panic and without running in circles.

use std::collections::BTreeMap;
use std::future::ready;
use std::sync::{Arc, Mutex, OnceLock};

use udm_pdata::btree::{self, Builder, Deletion, Walk};
use udm_pdata::layout::{self, SpaceMapRoot};
use udm_pdata::{Block, BlockIo, Error, IoError, IoFuture, Kind, Options, Ref, Root, Roots, Store, Value};
use udm_pdata::{array, block_on};

/// Patches of heads, of counts and of entries: block, offset, length, bytes.
pub const WORDS: &[&[u8]] = &[
    b"\x01\x10\x00\x04\x00\x00\x00\x00",
    b"\x02\x04\x00\x04\x01\x00\x00\x00",
    b"\x05\x14\x00\x04\xff\xff\xff\xff",
    b"\x07\x18\x00\x04\x00\x04\x00\x00",
    b"\xff\x00\x00\x08\xff\xff\xff\xff\xff\xff\xff\xff",
];

const BLOCKS: u64 = 220;

struct Memory(Mutex<BTreeMap<u64, Box<Block>>>);

impl BlockIo for Memory {
    fn blocks(&self) -> u64 {
        BLOCKS
    }

    fn read(&self, at: u64, mut into: Box<Block>) -> IoFuture<'_, Box<Block>> {
        let done = match self.0.lock().unwrap().get(&at) {
            Some(block) => {
                into.0 = block.0;
                Ok(into)
            }
            None => Err(IoError::Failed),
        };
        Box::pin(ready(done))
    }

    fn write(&self, blocks: Vec<(u64, Box<Block>)>) -> IoFuture<'_, Vec<(u64, Box<Block>)>> {
        self.0.lock().unwrap().extend(blocks.iter().cloned());
        Box::pin(ready(Ok(blocks)))
    }

    fn flush(&self) -> IoFuture<'_, ()> {
        Box::pin(ready(Ok(())))
    }

    fn write_fua(&self, _at: u64, block: Box<Block>) -> IoFuture<'_, Box<Block>> {
        Box::pin(ready(Ok(block)))
    }
}

/// A value of `N` bytes that refers to data.
#[derive(Clone, Copy)]
struct Mapped<const N: usize>(u64);

impl<const N: usize> Value for Mapped<N> {
    const SIZE: usize = N;

    fn decode(bytes: &[u8]) -> Self {
        Self(u64::decode(&bytes[..8]))
    }

    fn encode(&self, bytes: &mut [u8]) {
        bytes.fill(0);
        self.0.encode(&mut bytes[..8]);
    }

    fn refers_to(&self) -> Ref {
        Ref::Data(self.0)
    }
}

type Small = Mapped<8>;
type Fat = Mapped<1000>;

#[derive(Clone, Copy)]
struct Trees {
    small: [u64; 2],
    fat: [u64; 2],
    outer: u64,
    array: u64,
}

struct Whole {
    blocks: BTreeMap<u64, (Kind, Box<Block>)>,
    roots: Roots,
    trees: Trees,
}

async fn make(store: &mut Store) -> Result<Trees, Error> {
    store.create_data(20_000).await?;
    let mut builder = Builder::new();
    for key in 0..1000 {
        let data = store.data_alloc().await?.expect("there is room");
        builder.push(store, key * 3, Mapped::<8>(data)).await?;
    }
    let first = builder.finish(store).await?;
    let mut fat = btree::empty::<Fat>(store).await?;
    for key in 0..60 {
        let data = store.data_alloc().await?.expect("there is room");
        btree::insert(store, &mut fat, key, Mapped::<1000>(data)).await?;
    }
    let (mut second, mut other) = (first, fat);
    store.inc(first).await?;
    store.inc(fat).await?;
    for key in [5, 700, 2000] {
        let data = store.data_alloc().await?.expect("there is room");
        btree::insert(store, &mut second, key, Mapped::<8>(data)).await?;
        btree::insert(store, &mut other, key, Mapped::<1000>(data)).await?;
        store.data_inc(data..data + 1).await?;
    }
    store.data_inc(0..40).await?;
    store.data_inc(0..30).await?;
    let mut array = array::empty(store).await?;
    array::grow(store, &mut array, 0, 1200, Mapped::<8>(3)).await?;
    let mut outer = btree::empty::<Root>(store).await?;
    for (key, root) in [first, second].into_iter().enumerate() {
        store.inc(root).await?;
        btree::insert(store, &mut outer, key as u64, Root(root)).await?;
    }
    Ok(Trees { small: [first, second], fat: [fat, other], outer, array })
}

fn whole() -> &'static Whole {
    static WHOLE: OnceLock<Whole> = OnceLock::new();
    WHOLE.get_or_init(|| {
        let io = Arc::new(Memory(Mutex::default()));
        let (trees, roots) = block_on(async {
            let mut store = Store::create(io.clone(), 1, Options::default())?;
            let trees = make(&mut store).await?;
            let roots = store.prepare_commit().await?;
            store.commit(0, Block::zeroed()).await?;
            Ok::<_, Error>((trees, roots))
        })
        .expect("whole metadata can be made");
        let blocks = std::mem::take(&mut *io.0.lock().unwrap());
        let kinds = [Kind::Node, Kind::Bitmap, Kind::Index, Kind::Array];
        let kind = |at: u64, block: &Block| kinds.into_iter().find(|kind| layout::check(block, *kind, at).is_ok());
        let blocks = blocks.into_iter().map(|(at, block)| (at, (kind(at, &block).expect("one of them"), block)));
        Whole { blocks: blocks.collect(), roots, trees }
    })
}

fn root_of(bytes: &[u8]) -> SpaceMapRoot {
    let word = |i: usize| u64::decode(&bytes[i * 8..i * 8 + 8]).into();
    SpaceMapRoot { nr_blocks: word(0), nr_allocated: word(1), bitmap_root: word(2), ref_count_root: word(3) }
}

fn bytes_of(root: &SpaceMapRoot) -> Vec<u8> {
    let words = [root.nr_blocks, root.nr_allocated, root.bitmap_root, root.ref_count_root];
    words.iter().flat_map(|word| word.get().to_le_bytes()).collect()
}

/// Each block by itself; then the whole with what `data` says changed.
pub fn fuzz_pdata(data: &[u8]) {
    let mut block = Block::zeroed();
    let len = data.len().min(block.0.len());
    block.0[..len].copy_from_slice(&data[..len]);
    for kind in [Kind::Node, Kind::Bitmap, Kind::Index, Kind::Array] {
        layout::seal(&mut block, kind, 9);
        if layout::check(&block, kind, 9).is_ok() && kind == Kind::Node {
            let node = udm_pdata::node::Node::read(&block, 9).expect("it was checked");
            for i in 0..node.len() {
                assert_eq!(node.at_most(node.key(i)), Some(i));
                assert_eq!(node.value(i).len(), node.value_size());
            }
        }
    }
    let whole = whole();
    let mut blocks: BTreeMap<u64, _> = whole.blocks.iter().map(|(at, (_, block))| (*at, block.clone())).collect();
    let mut roots = bytes_of(&whole.roots.metadata);
    roots.extend(bytes_of(&whole.roots.data.expect("data was counted")));
    let mut rest = data;
    while let [at, low, high, len, more @ ..] = rest {
        let (bytes, more) = more.split_at(more.len().min(usize::from(len % 32)));
        rest = more;
        let offset = usize::from(u16::from_le_bytes([*low, *high]));
        if *at == 255 {
            let offset = offset % roots.len();
            roots.iter_mut().skip(offset).zip(bytes).for_each(|(to, from)| *to = *from);
            continue;
        }
        let at = u64::from(*at) % BLOCKS;
        let Some(block) = blocks.get_mut(&at) else { continue };
        // Entries lie in the first half of most blocks; and the checksum is made anew anyway.
        let offset = offset % block.0.len();
        block.0.iter_mut().skip(offset).zip(bytes).for_each(|(to, from)| *to = *from);
        layout::seal(block, whole.blocks[&at].0, at);
    }
    let roots = Roots { metadata: root_of(&roots[..32]), data: Some(root_of(&roots[32..])) };
    let io = Arc::new(Memory(Mutex::new(blocks)));
    block_on(use_it(io, &roots, whole.trees, data.len() as u32 % 3));
}

async fn use_it(io: Arc<Memory>, roots: &Roots, trees: Trees, first: u32) {
    let options = Options { cache_bytes: 0, read_only: false };
    let Ok(mut store) = Store::open(io, roots, options).await else { return };
    let store = &mut store;
    for root in trees.small {
        let _ = look::<Small>(store, root).await;
    }
    for root in trees.fat {
        let _ = look::<Fat>(store, root).await;
    }
    let _ = look::<Root>(store, trees.outer).await;
    let _ = array::walk::<Small>(store, trees.array, |_, _| {}).await;
    // Whatever fails is aborted, as a pool does; the next thing is tried on what was committed.
    for part in [first, first + 3] {
        if change(store, trees, part).await.is_err() && store.abort().is_err() {
            return;
        }
    }
}

async fn look<V: Value>(store: &mut Store, root: u64) -> Result<(), Error> {
    let mut walk = Walk::<V>::new(root, 0..=u64::MAX);
    let mut before = None;
    while let Some(entries) = walk.next(store).await? {
        for (key, _) in entries {
            assert!(before.is_none_or(|before| before < *key), "a walk goes forwards");
            before = Some(*key);
        }
    }
    for key in [0, 4, 699, 1998, u64::MAX] {
        let found = btree::lookup_le::<V>(store, root, key).await?;
        assert!(found.is_none_or(|(found, _)| found <= key));
        let found = btree::lookup_ge::<V>(store, root, key).await?;
        assert!(found.is_none_or(|(found, _)| found >= key));
    }
    Ok(())
}

async fn change(store: &mut Store, mut trees: Trees, part: u32) -> Result<(), Error> {
    match part {
        0 => {
            for key in 0..300 {
                let Some(data) = store.data_alloc().await? else { break };
                if let Some(old) = btree::insert(store, &mut trees.small[1], key * 7, Mapped::<8>(data)).await? {
                    store.data_dec(old.0..old.0 + 1).await?;
                }
            }
        }
        1 => {
            for key in 0..40 {
                let Some(data) = store.data_alloc().await? else { break };
                btree::insert(store, &mut trees.fat[1], key * 2, Mapped::<1000>(data)).await?;
                btree::remove::<Fat>(store, &mut trees.fat[1], key).await?;
            }
        }
        2 => _ = btree::remove_range::<Small>(store, &mut trees.small[0], 100, 2500, 1000).await?,
        3 => {
            let mut deletion = Deletion::<Fat>::new(trees.fat[0]);
            while !deletion.step(store, 100).await? {}
        }
        4 => _ = array::set(store, &mut trees.array, 700, Mapped::<8>(9)).await?,
        _ => {
            store.data_extend(40_000).await?;
            store.data_dec(0..20).await?;
        }
    }
    let _ = store.prepare_commit().await?;
    store.commit(0, Block::zeroed()).await
}
