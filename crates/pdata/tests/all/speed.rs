//! What things cost: `cargo test --release -p udm-pdata --test all speed -- --ignored --nocapture`. Nothing is judged.

use std::sync::Arc;

use crate::support::{Chance, Mapped, Memory, Super, commit, read_super};
use udm_pdata::btree::{self, Builder, Deletion};
use udm_pdata::{Options, Store, block_on};

/// Nanoseconds that this thread was on a CPU: others may be busy too.
fn now() -> u64 {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    stat.split(' ').next().unwrap().parse().unwrap()
}

fn report(what: &str, count: u64, started: u64) {
    let ns = (now() - started) as f64;
    eprintln!("{what:44} {:9.1} ns each, {:8.3} s in all", ns / count as f64, ns / 1e9);
}

fn store(cache_bytes: usize, data: u64) -> (Arc<Memory>, Store) {
    let io = Memory::new(100_000);
    let mut store = Store::create(io.clone(), 1, Options { cache_bytes, read_only: false }).unwrap();
    block_on(store.create_data(data)).unwrap();
    (io, store)
}

#[test]
#[ignore = "a measurement"]
fn costs() {
    const MANY: u64 = 4_000_000;
    const SOME: u64 = 1_000_000;
    let (io, mut s) = store(64 << 20, 1 << 28);
    let store = &mut s;
    block_on(async {
        let started = now();
        let mut builder = Builder::new();
        for key in 0..MANY {
            let data = store.data_alloc().await.unwrap().unwrap();
            builder.push(store, key, Mapped(data)).await.unwrap();
        }
        let mut root = builder.finish(store).await.unwrap();
        report("bulk: allocate and push", MANY, started);
        let started = now();
        let mut what = Super { number: 1, trees: vec![root] };
        commit(store, &what).unwrap();
        report("commit of it", MANY, started);

        let mut chance = Chance(1);
        for (name, keys) in [("lookup, random, 4 million", MANY), ("lookup, random, within 100,000", 100_000)] {
            for _ in 0..2 * MANY / 252 {
                btree::lookup::<Mapped>(store, root, chance.below(keys)).await.unwrap();
            }
            let started = now();
            let mut sum = 0;
            for _ in 0..SOME {
                let found: Option<Mapped> = btree::lookup(store, root, chance.below(keys)).await.unwrap();
                sum += found.unwrap().0;
            }
            report(name, SOME, started);
            assert_ne!(sum, 0);
        }

        let mut fresh = btree::empty::<Mapped>(store).await.unwrap();
        let started = now();
        for key in 0..SOME {
            btree::insert(store, &mut fresh, key, Mapped(0)).await.unwrap();
        }
        report("insert, in order", SOME, started);
        let mut fresh = btree::empty::<Mapped>(store).await.unwrap();
        let started = now();
        for _ in 0..SOME {
            btree::insert(store, &mut fresh, chance.below(SOME), Mapped(0)).await.unwrap();
        }
        report("insert, random", SOME, started);
        store.abort().unwrap();

        let started = now();
        for _ in 0..SOME {
            store.data_alloc().await.unwrap().unwrap();
        }
        report("allocate data", SOME, started);
        let started = now();
        for _ in 0..10 {
            commit(store, &what).unwrap();
        }
        report("ten small commits", 10, started);

        let mut first = 0;
        let started = now();
        for i in 0..100_000u64 {
            let data = store.data_alloc().await.unwrap().unwrap();
            btree::insert(store, &mut root, MANY + i, Mapped(data)).await.unwrap();
            first += data;
        }
        report("first write: allocate and insert", 100_000, started);
        assert_ne!(first, 0);
        what.trees = vec![root];
        commit(store, &what).unwrap();

        store.inc(root).await.unwrap();
        what.trees.push(root);
        commit(store, &what).unwrap();
        let started = now();
        for i in 0..100_000u64 {
            let data = store.data_alloc().await.unwrap().unwrap();
            let old = btree::insert(store, &mut what.trees[1], i * 40, Mapped(data)).await.unwrap().unwrap();
            store.data_dec(old.0..old.0 + 1).await.unwrap();
        }
        report("break sharing, every 40th block", 100_000, started);
        let started = now();
        commit(store, &what).unwrap();
        report("commit of it", 100_000, started);
        let started = now();
        let mut deletion = Deletion::<Mapped>::new(what.trees[0]);
        while !deletion.step(store, 16).await.unwrap() {}
        what.trees.remove(0);
        commit(store, &what).unwrap();
        report("delete 4.1 million, for each", MANY, started);

        let started = now();
        let (_, roots) = read_super(&io.get(0)).unwrap();
        let mut small =
            Store::open(io.clone(), &roots, Options { cache_bytes: 4 << 20, read_only: true }).await.unwrap();
        report("open", 1, started);
        let started = now();
        for _ in 0..100_000 {
            btree::lookup::<Mapped>(&mut small, what.trees[0], chance.below(MANY)).await.unwrap();
        }
        report("lookup, random, 4 MiB of cache", 100_000, started);
    });
}
