//! Metadata that is wrong: what the error says, and that nothing else happens.

use std::sync::Arc;

use crate::support::{Fat, Mapped, Memory, Super, commit, read_super};
use udm_pdata::btree::{self, Walk};
use udm_pdata::{Block, Error, Kind, Options, Roots, Store, array, block_on, layout};

/// A device with a tree of two levels, some of whose values are counted three times and more.
struct Good {
    io: Arc<Memory>,
    roots: Roots,
    root: u64,
    leaf: u64,
    array: u64,
}

fn good() -> Good {
    let io = Memory::new(300);
    let mut store = Store::create(io.clone(), 1, Options::default()).unwrap();
    let (root, array) = block_on(async {
        store.create_data(100).await.unwrap();
        let mut root = btree::empty::<Fat>(&mut store).await.unwrap();
        for key in 0..10 {
            let data = store.data_alloc().await.unwrap().unwrap();
            btree::insert(&mut store, &mut root, key * 10, Fat(data)).await.unwrap();
        }
        for _ in 0..3 {
            store.data_inc(0..1).await.unwrap();
        }
        let mut array = array::empty(&mut store).await.unwrap();
        array::grow(&mut store, &mut array, 0, 3, 5u64).await.unwrap();
        (root, array)
    });
    commit(&mut store, &Super { number: 1, trees: vec![root] }).unwrap();
    let (_, roots) = read_super(&io.get(0)).unwrap();
    let node = io.get(root);
    let node = udm_pdata::node::Node::read(&node, root).unwrap();
    assert!(!node.is_leaf() && node.len() == 8, "leaves with one key, and the last with three");
    Good { roots, root, leaf: node.child(7), array, io }
}

impl Good {
    /// Changes the block at `at` and makes its checksum right again.
    fn patch(&self, at: u64, kind: Kind, change: impl FnOnce(&mut Block)) {
        let mut block = self.io.get(at);
        layout::check(&block, kind, at).unwrap();
        change(&mut block);
        layout::seal(&mut block, kind, at);
        self.io.disk().durable.insert(at, block);
    }

    fn raw(&self, at: u64, change: impl FnOnce(&mut Block)) {
        let mut block = self.io.get(at);
        change(&mut block);
        self.io.disk().durable.insert(at, block);
    }

    fn open(&self) -> Result<Store, Error> {
        block_on(Store::open(self.io.clone(), &self.roots, Options::default()))
    }

    /// Reads the whole tree.
    fn walk(&self) -> Result<usize, Error> {
        let mut store = self.open()?;
        block_on(async {
            let (mut walk, mut seen) = (Walk::<Fat>::new(self.root, 0..=u64::MAX), 0);
            while let Some(some) = walk.next(&mut store).await? {
                seen += some.len();
            }
            Ok(seen)
        })
    }
}

fn put32(block: &mut Block, at: usize, number: u32) {
    block.0[at..at + 4].copy_from_slice(&number.to_le_bytes());
}

fn put64(block: &mut Block, at: usize, number: u64) {
    block.0[at..at + 8].copy_from_slice(&number.to_le_bytes());
}

#[track_caller]
fn check<T: std::fmt::Debug>(result: Result<T, Error>, expected: &str) {
    let error = result.expect_err("it was damaged").to_string();
    // Block numbers and checksums come out as they come out.
    let numbers = |text: &str| {
        text.split(' ').map(|word| if word.starts_with("0x") { "0x" } else { word }).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(numbers(&error), expected);
}

#[test]
fn whole_metadata_is_read() {
    assert_eq!(good().walk(), Ok(10));
}

#[test]
fn a_node_that_is_wrong() {
    let g = good();
    let leaf = g.leaf;
    let at = |text: &str| format!("btree node in metadata block {leaf}: {text}");
    type Change = fn(&mut Block);
    let rows: &[(Change, &str)] = &[
        (|b| put32(b, 4, 0), "flags is 0, expected 1 (internal) or 2 (leaf)"),
        (|b| put32(b, 4, 3), "flags is 3, expected 1 (internal) or 2 (leaf)"),
        (|b| put32(b, 4, 1), "value_size is 1000, expected 8 in an internal node"),
        (|b| put32(b, 24, 2000), "value_size is 2000, expected at most 1346"),
        (|b| put32(b, 20, 252), "max_entries is 252, expected 3"),
        (|b| put32(b, 16, 4), "nr_entries is 4, expected at most 3"),
        (|b| put64(b, 32, 500), "a key is 80, expected more than the key before it, 500"),
        (|b| put32(b, 16, 0), "nr_entries is 0, expected at least 1"),
        (|b| put64(b, 32, 5), "its first key is 5, expected at least 70, as its parent says"),
        (
            |b| {
                put32(b, 24, 8);
                put32(b, 20, 252);
            },
            "value_size is 8, expected 1000 in a leaf of this tree",
        ),
    ];
    for (change, expected) in rows {
        let g = good();
        g.patch(leaf, Kind::Node, change);
        check(g.walk(), &at(expected));
    }
    let g = good();
    g.raw(leaf, |b| b.0[100] ^= 1);
    check(g.walk(), &at("the checksum is 0x expected 0x"));
    let g = good();
    g.raw(leaf, |b| put64(b, 8, 77));
    check(g.walk(), &at(&format!("its own block number is 77, expected {leaf}")));
}

#[test]
fn a_parent_that_is_wrong() {
    let child = |n: usize| 32 + 252 * 8 + n * 8;
    let g = good();
    g.patch(g.root, Kind::Node, |b| put64(b, child(0), 300));
    check(
        g.walk(),
        &format!("btree node in metadata block {}: a block that it refers to is 300, expected less than 300", g.root),
    );
    let g = good();
    g.patch(g.root, Kind::Node, |b| put64(b, 88, 75));
    check(
        g.walk(),
        &format!(
            "btree node in metadata block {}: its first key is 70, expected at least 75, as its parent says",
            g.leaf
        ),
    );
    // A node that leads to itself: the keys are in range for ever.
    let g = good();
    g.patch(g.root, Kind::Node, |b| {
        put32(b, 16, 1);
        put64(b, 32, 0);
        put64(b, child(0), g.root);
    });
    check(
        g.walk(),
        &format!("btree node in metadata block {}: its depth is more than 16, expected at most 16", g.root),
    );
    // Another kind of block.
    let g = good();
    let index = g.roots.metadata.bitmap_root.get();
    g.patch(g.root, Kind::Node, |b| put64(b, child(0), index));
    check(g.walk(), &format!("btree node in metadata block {index}: the checksum is 0x expected 0x"));
    // A block that cannot be read.
    let g = good();
    g.io.disk().fail_in = Some(13);
    check(g.walk(), &format!("reading metadata block {}: the device answered with an I/O error", g.leaf));
}

#[test]
fn roots_that_are_wrong() {
    type Change = fn(&mut Roots);
    let rows: &[(Change, &str)] = &[
        (
            |r| r.metadata.nr_blocks = 0.into(),
            "metadata nr_blocks is 0, expected 1 to 300, the size of the device in blocks",
        ),
        (
            |r| r.metadata.nr_blocks = 301.into(),
            "metadata nr_blocks is 301, expected 1 to 300, the size of the device in blocks",
        ),
        (|r| r.metadata.bitmap_root = 300.into(), "metadata bitmap_root is 300, expected less than 300"),
        (
            |r| r.metadata.ref_count_root = u64::MAX.into(),
            "metadata ref_count_root is 18446744073709551615, expected less than 300",
        ),
        (
            |r| r.data.as_mut().unwrap().nr_allocated = 101.into(),
            "data nr_allocated is 101, expected at most 100, its nr_blocks",
        ),
    ];
    for (change, expected) in rows {
        let mut g = good();
        change(&mut g.roots);
        let error = g.open().expect_err("wrong roots").to_string();
        assert_eq!(error, format!("space map root in metadata block 0: {expected}"));
    }
}

#[test]
fn counts_that_do_not_add_up() {
    let bitmap_of = |g: &Good, at: u64| {
        let index = g.io.get(at);
        layout::index(&index).index[0].blocknr.get()
    };
    // A node in use that the bitmap calls free: to change the tree must not go on.
    let g = good();
    let bitmap = bitmap_of(&g, g.roots.metadata.bitmap_root.get());
    g.patch(bitmap, Kind::Bitmap, |b| layout::bitmap_set(b, g.leaf, 0));
    let mut store = g.open().unwrap();
    let mut root = g.root;
    let done = block_on(async {
        btree::lookup::<Fat>(&mut store, root, 71).await?;
        btree::insert(&mut store, &mut root, 71, Fat(1)).await
    });
    let expected = "the reference count of this block is 0, expected at least 1: something refers to it";
    check(done, &format!("space map bitmap in metadata block {}: {expected}", g.leaf));
    assert_eq!(block_on(store.data_alloc()), Err(Error::Poisoned));
    assert_eq!(block_on(store.prepare_commit()).unwrap_err(), Error::Poisoned);
    // One that it calls shared by many, whom the tree of counts does not know.
    let g = good();
    let bitmap = bitmap_of(&g, g.roots.metadata.bitmap_root.get());
    g.patch(bitmap, Kind::Bitmap, |b| layout::bitmap_set(b, g.leaf, 3));
    let mut store = g.open().unwrap();
    let counts = g.roots.metadata.ref_count_root.get();
    check(
        block_on(store.ref_count(g.leaf)),
        &format!(
            "btree node in metadata block {counts}: the count of a metadata block in the tree of large counts is missing \
             (block {}), expected 3 or more",
            g.leaf
        ),
    );
    // A data block past the end.
    let g = good();
    g.patch(g.leaf, Kind::Node, |b| put64(b, 32 + 3 * 8, 100));
    let mut store = g.open().unwrap();
    let done = block_on(async {
        store.inc(g.root).await?;
        let mut root = g.root;
        btree::insert(&mut store, &mut root, 71, Fat(1)).await
    });
    check(
        done,
        &format!(
            "btree node in metadata block {}: a data block that it refers to is 100, expected less than 100",
            g.leaf
        ),
    );
    // One reference too many is given back.
    let g = good();
    let mut store = g.open().unwrap();
    block_on(store.data_dec(1..2)).unwrap();
    let error = block_on(store.data_dec(1..2)).unwrap_err().to_string();
    assert!(error.ends_with("the reference count of a data block is 0 (block 1), expected at least 1"), "{error}");
    // The caller's own mistakes change nothing.
    let g = good();
    let mut store = g.open().unwrap();
    check(block_on(store.inc(300)), "metadata block 300 does not exist: there are 300");
    check(block_on(store.data_inc(99..101)), "data block 100 does not exist: there are 100");
    check(block_on(store.extend(299)), "metadata cannot shrink from 300 to 299 blocks");
    check(block_on(store.data_extend(99)), "data cannot shrink from 100 to 99 blocks");
    check(block_on(store.create_data(9)), "data blocks are counted already");
    check(block_on(store.commit(0, Block::zeroed())), "a commit has to be prepared, and nothing changed afterwards");
    assert!(!store.is_dirty());
}

#[test]
fn an_array_block_that_is_wrong() {
    let g = good();
    let mut store = g.open().unwrap();
    let udm_pdata::Root(block) = block_on(btree::lookup(&mut store, g.array, 0)).unwrap().unwrap();
    type Change = fn(&mut Block);
    let rows: &[(Change, &str)] = &[
        (|b| put32(b, 12, 0), "the size of a value is 0, expected 1 to 4072"),
        (|b| put32(b, 4, 510), "max_entries is 510, expected 509"),
        (|b| put32(b, 8, 510), "nr_entries is 510, expected at most 509"),
        (
            |b| {
                put32(b, 12, 4);
                put32(b, 4, 1018);
            },
            "the size of a value is 4, expected 8",
        ),
    ];
    for (change, expected) in rows {
        let g = good();
        g.patch(block, Kind::Array, change);
        let mut store = g.open().unwrap();
        let done = block_on(array::get::<u64>(&mut store, g.array, 1));
        check(done, &format!("array block in metadata block {block}: {expected}"));
    }
}

#[test]
fn reading_only_changes_nothing() {
    let g = good();
    let options = Options { read_only: true, ..Options::default() };
    let mut store = block_on(Store::open(g.io.clone(), &g.roots, options)).unwrap();
    check(block_on(store.data_alloc()), "the metadata was opened for reading only");
    let mut root = g.root;
    check(block_on(btree::insert(&mut store, &mut root, 71, Fat(1))), "the metadata was opened for reading only");
    check(block_on(btree::remove::<Mapped>(&mut store, &mut root, 1)), "the metadata was opened for reading only");
    assert_eq!(block_on(btree::lookup::<Fat>(&mut store, root, 10)).unwrap().map(|fat| fat.0), Some(1));
    let before = g.io.disk().writes;
    assert!(!store.is_dirty());
    assert_eq!(g.io.disk().writes, before);
}

#[test]
fn a_metadata_device_that_is_full() {
    let io = Memory::new(60);
    let mut store = Store::create(io.clone(), 1, Options::default()).unwrap();
    let mut root = block_on(async {
        store.create_data(1000).await.unwrap();
        btree::empty::<Fat>(&mut store).await.unwrap()
    });
    commit(&mut store, &Super { number: 1, trees: vec![root] }).unwrap();
    let full = block_on(async {
        for key in 0.. {
            let data = store.data_alloc().await?.expect("there is room for data");
            btree::insert(&mut store, &mut root, key, Fat(data)).await?;
        }
        Ok(())
    });
    check(full, "no free metadata block is left");
    check(block_on(store.data_alloc()), "an earlier operation on the metadata failed; abort the transaction");
    store.abort().unwrap();
    let (what, trees) = crate::support::check::<Fat>(&io.disk());
    assert_eq!((what.number, trees[0].len()), (1, 0));
    // There is room for a commit when the metadata is as full as it gets.
    root = what.trees[0];
    for key in 0.. {
        if store.nr_free() < 12 {
            break;
        }
        block_on(btree::insert(&mut store, &mut root, key, Fat(0))).unwrap();
        block_on(store.data_inc(0..1)).unwrap();
    }
    commit(&mut store, &Super { number: 2, trees: vec![root] }).unwrap();
    crate::support::check::<Fat>(&io.disk());
    // And it goes on when the device grows.
    *io.blocks.lock().unwrap() = 20_000;
    block_on(store.extend(20_000)).unwrap();
    for key in 1000..2000 {
        block_on(btree::insert(&mut store, &mut root, key, Fat(0))).unwrap();
        block_on(store.data_inc(0..1)).unwrap();
    }
    commit(&mut store, &Super { number: 3, trees: vec![root] }).unwrap();
    let (_, trees) = crate::support::check::<Fat>(&io.disk());
    assert!(trees[0].len() > 1000);
}

/// To make room for what it reads, a read may have to write blocks of the open transaction. When that fails they are
/// gone, and what the disk has in their places is older, and whole: nobody may see it.
#[test]
fn a_read_that_could_not_make_room_is_the_last_before_an_abort() {
    const KEYS: u64 = 600;
    let io = Memory::new(2000);
    let options = Options { cache_bytes: 0, ..Options::default() };
    let mut store = Store::create(io.clone(), 1, options).unwrap();
    let mut root = block_on(async {
        store.create_data(10).await.unwrap();
        store.data_inc(0..10).await.unwrap();
        btree::empty::<Fat>(&mut store).await.unwrap()
    });
    let mut write = |store: &mut Store, data: u64, keys: u64| {
        for key in 0..keys {
            block_on(btree::insert(store, &mut root, key, Fat(data))).unwrap();
        }
        root
    };
    // Often enough for every free place to hold a leaf of before.
    for number in 1..=8 {
        let root = write(&mut store, number, KEYS);
        commit(&mut store, &Super { number, trees: vec![root] }).unwrap();
    }
    let root = write(&mut store, 9, 100);
    let look = |store: &mut Store, key| block_on(btree::lookup::<Fat>(store, root, key));
    let failed = (0..KEYS).rev().find_map(|key| {
        io.disk().fail_in = Some(0);
        let found = look(&mut store, key);
        io.disk().fail_in = None;
        match found {
            Err(Error::Read { .. }) => look(&mut store, key).err(),
            other => other.err(),
        }
    });
    assert!(matches!(failed, Some(Error::Write(_))), "{failed:?}");
    for key in 0..KEYS {
        assert_eq!(look(&mut store, key), Err(Error::Poisoned), "key {key}");
    }
    assert_eq!(block_on(store.data_ref_count(1)), Err(Error::Poisoned));
    assert!(store.is_poisoned());

    store.abort().unwrap();
    let (what, _) = read_super(&io.get(0)).unwrap();
    for key in 0..KEYS {
        assert_eq!(block_on(btree::lookup::<Fat>(&mut store, what.trees[0], key)).unwrap(), Some(Fat(8)));
    }
}
