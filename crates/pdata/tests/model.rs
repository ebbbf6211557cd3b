//! Trees against `BTreeMap`, with snapshots, deletions, commits and aborts; after every commit all that is on the disk is
//! counted anew.

mod support;

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;
use support::{Fat, Mapped, Memory, Super, check, commit, read_super};
use udm_pdata::btree::{self, Deletion, Walk};
use udm_pdata::{Error, Options, Store, Value, block_on};

#[derive(Clone, Debug)]
enum Op {
    Insert { tree: usize, key: u64, run: u64 },
    Remove { tree: usize, key: u64, run: u64 },
    RemoveRange { tree: usize, from: u64, len: u64, budget: usize },
    Clone { tree: usize },
    Delete { tree: usize },
    Look { tree: usize, key: u64 },
    Build { tree: usize, step: u64 },
    Extend { metadata: u64, data: u64 },
    Commit,
    Abort,
    Reopen,
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let tree = 0usize..8;
    let key = prop_oneof![3 => 0u64..3000, 1 => any::<u64>()];
    let run = prop_oneof![3 => 1u64..5, 2 => 1u64..300];
    let one = prop_oneof![
        8 => (tree.clone(), key.clone(), run.clone()).prop_map(|(tree, key, run)| Op::Insert { tree, key, run }),
        4 => (tree.clone(), key.clone(), run).prop_map(|(tree, key, run)| Op::Remove { tree, key, run }),
        3 => (tree.clone(), key.clone(), 0u64..2000, 1usize..50)
            .prop_map(|(tree, from, len, budget)| Op::RemoveRange { tree, from, len, budget }),
        3 => tree.clone().prop_map(|tree| Op::Clone { tree }),
        2 => tree.clone().prop_map(|tree| Op::Delete { tree }),
        3 => (tree.clone(), key).prop_map(|(tree, key)| Op::Look { tree, key }),
        1 => (tree, 1u64..20).prop_map(|(tree, step)| Op::Build { tree, step }),
        1 => (0u64..3000, 0u64..20_000).prop_map(|(metadata, data)| Op::Extend { metadata, data }),
        4 => Just(Op::Commit),
        1 => Just(Op::Abort),
        1 => Just(Op::Reopen),
    ];
    proptest::collection::vec(one, 1..40)
}

type Model = Vec<BTreeMap<u64, u64>>;

struct World<V> {
    io: Arc<Memory>,
    store: Store,
    now: Super,
    trees: Model,
    committed: (Super, Model),
    options: Options,
    value: std::marker::PhantomData<V>,
}

trait Made: Value + PartialEq + std::fmt::Debug {
    fn made(data: u64) -> Self;
    fn data(self) -> u64;
}

impl Made for Fat {
    fn made(data: u64) -> Self {
        Self(data)
    }
    fn data(self) -> u64 {
        self.0
    }
}

impl Made for Mapped {
    fn made(data: u64) -> Self {
        Self(data)
    }
    fn data(self) -> u64 {
        self.0
    }
}

impl<V: Made> World<V> {
    fn new(cache_blocks: usize) -> Self {
        let io = Memory::new(17_000);
        let options = Options { cache_bytes: cache_blocks * 4096, read_only: false };
        let mut store = Store::create(io.clone(), 1, options).unwrap();
        let root = block_on(async {
            store.create_data(40_000).await.unwrap();
            btree::empty::<V>(&mut store).await.unwrap()
        });
        let now = Super { number: 1, trees: vec![root] };
        let trees = vec![BTreeMap::new()];
        commit(&mut store, &now).unwrap();
        let committed = (now.clone(), trees.clone());
        Self { io, store, now, trees, committed, options, value: std::marker::PhantomData }
    }

    fn check(&self) {
        let (what, trees) = check::<V>(&self.io.disk());
        assert_eq!(what, self.committed.0);
        for (found, expected) in trees.iter().zip(&self.committed.1) {
            assert!(found.iter().map(|(key, value)| (*key, value.data())).eq(expected.iter().map(|(k, v)| (*k, *v))));
        }
    }

    async fn run(&mut self, op: &Op) -> Result<(), Error> {
        let at = |tree: usize, many: usize| tree % many;
        let many = self.trees.len();
        let store = &mut self.store;
        match *op {
            Op::Insert { tree, key, run } => {
                let tree = at(tree, many);
                for key in key..key.saturating_add(run) {
                    let Some(data) = store.data_alloc().await? else { break };
                    let old = btree::insert(store, &mut self.now.trees[tree], key, V::made(data)).await?;
                    if let Some(old) = old {
                        store.data_dec(old.data()..old.data() + 1).await?;
                    }
                    assert_eq!(self.trees[tree].insert(key, data), old.map(V::data));
                }
            }
            Op::Remove { tree, key, run } => {
                let tree = at(tree, many);
                for key in key..key.saturating_add(run) {
                    let old = btree::remove::<V>(store, &mut self.now.trees[tree], key).await?;
                    if let Some(old) = old {
                        store.data_dec(old.data()..old.data() + 1).await?;
                    }
                    assert_eq!(self.trees[tree].remove(&key), old.map(V::data));
                }
            }
            Op::RemoveRange { tree, from, len, budget } => {
                let tree = at(tree, many);
                let to = from.saturating_add(len);
                let (mut next, mut entries) = (Some(from), 0);
                while let Some(from) = next {
                    let removed = btree::remove_range::<V>(store, &mut self.now.trees[tree], from, to, budget).await?;
                    assert!(removed.next.is_none_or(|next| next > from && next <= to));
                    next = removed.next;
                    entries += removed.entries;
                }
                let before = self.trees[tree].len();
                self.trees[tree].retain(|key, _| *key < from || *key > to);
                assert_eq!(entries as usize, before - self.trees[tree].len());
            }
            Op::Clone { tree } => {
                let tree = at(tree, many);
                if many < 100 {
                    store.inc(self.now.trees[tree]).await?;
                    self.now.trees.push(self.now.trees[tree]);
                    self.trees.push(self.trees[tree].clone());
                }
            }
            Op::Delete { tree } => {
                let tree = at(tree, many);
                if many > 1 {
                    let mut deletion = Deletion::<V>::new(self.now.trees.remove(tree));
                    self.trees.remove(tree);
                    while !deletion.step(store, 3).await? {}
                }
            }
            Op::Look { tree, key } => {
                let tree = at(tree, many);
                let (root, model) = (self.now.trees[tree], &self.trees[tree]);
                let pair = |(key, value): (u64, V)| (key, value.data());
                let found = btree::lookup::<V>(store, root, key).await?;
                assert_eq!(found.map(V::data), model.get(&key).copied());
                let found = btree::lookup_le::<V>(store, root, key).await?;
                assert_eq!(found.map(pair), model.range(..=key).next_back().map(|(k, v)| (*k, *v)));
                let found = btree::lookup_ge::<V>(store, root, key).await?;
                assert_eq!(found.map(pair), model.range(key..).next().map(|(k, v)| (*k, *v)));
                let mut leaf = Vec::new();
                let span = btree::leaf::<V>(store, root, key, &mut leaf).await?;
                assert!(span.contains(&key));
                assert!(leaf.into_iter().map(pair).eq(model.range(span).map(|(k, v)| (*k, *v))));
                let last = key.saturating_add(1000);
                let (mut walk, mut seen) = (Walk::<V>::new(root, key..=last), Vec::new());
                while let Some(some) = walk.next(store).await? {
                    seen.extend(some.iter().copied().map(pair));
                }
                assert!(seen.into_iter().eq(model.range(key..=last).map(|(k, v)| (*k, *v))));
            }
            Op::Build { tree, step } => {
                let tree = at(tree, many);
                let mut builder = btree::Builder::new();
                let copy: BTreeMap<u64, u64> =
                    self.trees[tree].iter().filter(|(k, _)| *k % step == 0).map(|(k, v)| (*k, *v)).collect();
                for (key, data) in &copy {
                    store.data_inc(*data..*data + 1).await?;
                    builder.push(store, *key, V::made(*data)).await?;
                }
                self.now.trees.push(builder.finish(store).await?);
                self.trees.push(copy);
            }
            Op::Extend { metadata, data } => {
                let blocks = store.nr_blocks() + metadata;
                *self.io.blocks.lock().unwrap() = blocks;
                store.extend(blocks).await?;
                store.data_extend(store.data_nr_blocks() + data).await?;
            }
            Op::Commit => {
                self.now.number += 1;
                commit(store, &self.now)?;
                self.committed = (self.now.clone(), self.trees.clone());
                self.check();
            }
            Op::Abort => {
                store.abort()?;
                (self.now, self.trees) = self.committed.clone();
            }
            Op::Reopen => {
                let (what, roots) = read_super(&self.io.get(0)).unwrap();
                assert_eq!(what, self.committed.0);
                *store = Store::open(self.io.clone(), &roots, self.options).await?;
                (self.now, self.trees) = self.committed.clone();
            }
        }
        Ok(())
    }
}

fn run<V: Made>(cache_blocks: usize, ops: &[Op]) {
    let mut world = World::<V>::new(cache_blocks);
    for op in ops {
        block_on(world.run(op)).unwrap();
    }
    block_on(world.run(&Op::Commit)).unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 16, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn fat_values_in_a_small_cache(ops in ops()) {
        run::<Fat>(0, &ops);
    }

    #[test]
    fn small_values(ops in ops()) {
        run::<Mapped>(4096, &ops);
    }
}
