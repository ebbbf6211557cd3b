//! Arrays against `Vec`, also such that two arrays share blocks.

use crate::support::{Chance, Mapped, Memory, Super, commit, read_super};
use udm_pdata::layout::array_max_entries;
use udm_pdata::{Error, Options, Root, Store, array, block_on, btree};

#[test]
fn arrays_are_as_vectors() {
    let io = Memory::new(2000);
    let mut store = Store::create(io.clone(), 1, Options::default()).unwrap();
    let mut chance = Chance(7);
    block_on(async {
        let store = &mut store;
        store.create_data(100).await.unwrap();
        let data = store.data_alloc().await.unwrap().unwrap();
        let mut root = array::empty(store).await.unwrap();
        let mut model: Vec<u64> = Vec::new();
        let mut old: Option<(u64, Vec<u64>)> = None;
        for round in 0..40 {
            let more = 1 + chance.below(900);
            let value = chance.below(100);
            store.data_inc(value..value + 1).await.unwrap();
            let from = model.len() as u64;
            array::grow(store, &mut root, from, from + more, Mapped(value)).await.unwrap();
            store.data_dec(value..value + 1).await.unwrap();
            model.resize(model.len() + more as usize, value);
            for _ in 0..50 {
                let (index, value) = (chance.below(model.len() as u64), chance.below(100));
                store.data_inc(value..value + 1).await.unwrap();
                let before = array::set(store, &mut root, index, Mapped(value)).await.unwrap();
                store.data_dec(before.0..before.0 + 1).await.unwrap();
                assert_eq!(std::mem::replace(&mut model[index as usize], value), before.0);
            }
            if let Some((root, model)) = &old {
                same(store, *root, model).await;
            } else if round == 20 {
                store.inc(root).await.unwrap();
                old = Some((root, model.clone()));
            }
            same(store, root, &model).await;
        }
        // Every value is counted once for each block that holds it; blocks that both arrays share hold it once.
        let (old, before) = old.as_ref().unwrap();
        let mut expected = vec![0u32; 100];
        expected[data as usize] += 1;
        let chunk = array_max_entries(8);
        let mut shared = 0;
        for n in 0..model.chunks(chunk).len() {
            let new_at = btree::lookup::<Root>(store, root, n as u64).await.unwrap();
            let old_at = btree::lookup::<Root>(store, *old, n as u64).await.unwrap();
            shared += usize::from(new_at == old_at);
            let mine = model.chunks(chunk).nth(n).unwrap();
            let theirs = before.chunks(chunk).nth(n).filter(|_| new_at != old_at).unwrap_or_default();
            mine.iter().chain(theirs).for_each(|value| expected[*value as usize] += 1);
        }
        assert!(shared < before.len() / chunk);
        for (block, expected) in expected.into_iter().enumerate() {
            assert_eq!(store.data_ref_count(block as u64).await.unwrap(), expected, "data block {block}");
        }
        commit(store, &Super { number: 1, trees: vec![] }).unwrap();
        let (_, roots) = read_super(&io.get(0)).unwrap();
        let mut again = Store::open(io.clone(), &roots, Options::default()).await.unwrap();
        same(&mut again, root, &model).await;
        let end = model.len() as u64;
        assert!(matches!(array::set(store, &mut root, end, Mapped(1)).await, Err(Error::Refused(_))));
        assert!(matches!(array::grow(store, &mut root, end + 1, end + 2, Mapped(1)).await, Err(Error::Refused(_))));
        assert_eq!(array::get::<Mapped>(store, root, end).await.unwrap(), None);
    });
}

async fn same(store: &mut Store, root: u64, model: &[u64]) {
    let mut seen = Vec::new();
    array::walk(store, root, |index, Mapped(value)| {
        assert_eq!(index as usize, seen.len());
        seen.push(value);
    })
    .await
    .unwrap();
    assert_eq!(seen, model);
    let middle = model.len() / 2;
    assert_eq!(array::get(store, root, middle as u64).await.unwrap(), Some(Mapped(model[middle])));
}
