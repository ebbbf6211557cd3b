//! Trees and their model, and what can be done to both.

use std::collections::BTreeMap;
use std::sync::Arc;

use udm_pdata::btree::{self, Deletion, Walk};
use udm_pdata::{Error, Options, Store, Value, block_on};

use super::{Chance, Fat, Mapped, Memory, Super, check, commit, read_super};

#[derive(Clone, Debug)]
pub(crate) enum Op {
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

pub(crate) type Model = Vec<BTreeMap<u64, u64>>;

pub(crate) struct World<V> {
    pub(crate) io: Arc<Memory>,
    pub(crate) store: Store,
    pub(crate) now: Super,
    pub(crate) trees: Model,
    pub(crate) committed: (Super, Model),
    pub(crate) options: Options,
    value: std::marker::PhantomData<V>,
}

pub(crate) trait Made: Value + PartialEq + std::fmt::Debug {
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
    pub(crate) fn new(cache_blocks: usize, metadata: u64, data: u64) -> Self {
        let io = Memory::new(metadata);
        let options = Options { cache_bytes: cache_blocks * 4096, read_only: false };
        let mut store = Store::create(io.clone(), 1, options).unwrap();
        let root = block_on(async {
            store.create_data(data).await.unwrap();
            btree::empty::<V>(&mut store).await.unwrap()
        });
        let now = Super { number: 1, trees: vec![root] };
        let trees = vec![BTreeMap::new()];
        commit(&mut store, &now).unwrap();
        let committed = (now.clone(), trees.clone());
        Self { io, store, now, trees, committed, options, value: std::marker::PhantomData }
    }

    pub(crate) fn check(&self) {
        let (what, trees) = check::<V>(&self.io.disk());
        assert_eq!(what, self.committed.0);
        for (found, expected) in trees.iter().zip(&self.committed.1) {
            assert!(found.iter().map(|(key, value)| (*key, value.data())).eq(expected.iter().map(|(k, v)| (*k, *v))));
        }
    }

    pub(crate) async fn run(&mut self, op: &Op) -> Result<(), Error> {
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

/// An operation by chance.
pub(crate) fn op(chance: &mut Chance) -> Op {
    let tree = chance.below(8) as usize;
    let key = chance.below(2000);
    let most = if chance.below(2) == 0 { 4 } else { 100 };
    let run = 1 + chance.below(most);
    match chance.below(24) {
        0..8 => Op::Insert { tree, key, run },
        8..11 => Op::Remove { tree, key, run },
        11..13 => Op::RemoveRange { tree, from: key, len: chance.below(500), budget: 1 + chance.below(20) as usize },
        13..15 => Op::Clone { tree },
        15..17 => Op::Delete { tree },
        17 => Op::Build { tree, step: 1 + chance.below(10) },
        18 => Op::Extend { metadata: chance.below(50), data: chance.below(300) },
        19 => Op::Look { tree, key },
        20 => Op::Abort,
        _ => Op::Commit,
    }
}
