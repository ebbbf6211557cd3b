//! Trees against `BTreeMap`, with snapshots, deletions, commits and aborts; after every commit all that is on the disk
//! is counted anew.

use crate::support::world::{Made, Op, World};
use crate::support::{Fat, Mapped};
use proptest::prelude::*;
use udm_pdata::block_on;

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

fn run<V: Made>(cache_blocks: usize, ops: &[Op]) {
    let mut world = World::<V>::new(cache_blocks, 17_000, 40_000);
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
