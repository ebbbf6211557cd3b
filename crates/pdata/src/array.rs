//! The array (`dm-array.c`, 6.12): a tree whose leaves lead to blocks of packed values. Every block but the last is
//! full. The array does not know how many values it has: who keeps its root keeps that too.
//!
//! As with trees, the array owns one reference to what each of its values refers to.

use std::mem::size_of;
use std::ops::Range;

use crate::block::Block;
use crate::btree;
use crate::cache::{Attempt, Slot};
use crate::error::{Error, Kind};
use crate::layout::{ArrayHeader, array_max_entries, word32};
use crate::store::Store;
use crate::transaction::Transaction;
use crate::value::{Ref, Root, Value};

const HEAD: usize = size_of::<ArrayHeader>();

fn len(block: &Block) -> usize {
    word32(block, 8) as usize
}

fn value_size(block: &Block) -> usize {
    word32(block, 12) as usize
}

fn bytes<V: Value>(block: &Block, i: usize) -> &[u8] {
    &block.0[HEAD + i * V::SIZE..HEAD + (i + 1) * V::SIZE]
}

fn bytes_mut<V: Value>(block: &mut Block, i: usize) -> &mut [u8] {
    &mut block.0[HEAD + i * V::SIZE..HEAD + (i + 1) * V::SIZE]
}

/// What an array's block of `V` refers to.
fn refs<V: Value>(block: &Block, list: &mut Vec<Ref>) {
    if value_size(block) == V::SIZE {
        let refs = (0..len(block)).map(|i| V::decode(bytes::<V>(block, i)).refers_to());
        list.extend(refs.filter(|one| *one != Ref::Uncounted));
    }
}

/// Which block has value `index`, and where in it.
fn place<V: Value>(index: u64) -> (u64, usize) {
    let many = array_max_entries(V::SIZE) as u64;
    (index / many, (index % many) as usize)
}

fn check<V: Value>(block: &Block, at: u64) -> Result<(), Error> {
    let size = value_size(block);
    if size == V::SIZE {
        return Ok(());
    }
    Err(Error::damage(at, Kind::Array, "the size of a value", size, V::SIZE))
}

/// The block with number `number` in the array, if there is one.
fn find<V: Value>(t: &mut Transaction, root: u64, number: u64) -> Attempt<Option<Slot>> {
    let Some(Root(at)) = btree::attempt_lookup::<Root>(t, root, number)? else { return Ok(None) };
    t.check_metadata(at, root, Kind::Node)?;
    let slot = t.cache.find(at, Kind::Array)?;
    check::<V>(t.cache.block(slot), at)?;
    Ok(Some(slot))
}

/// The block with number `number` in the array, which is there, and the way to it, made the transaction's own.
fn own<V: Value>(t: &mut Transaction, root: &mut u64, number: u64) -> Attempt<Slot> {
    let leaf = btree::own_leaf::<Root>(t, root, number)?;
    let node = t.node(leaf);
    let entry = node.at_most(number).expect("the caller has found it");
    let at = node.child(entry);
    let slot = t.own(at, Kind::Array, refs::<V>)?;
    let now = t.cache.at(slot);
    if now != at {
        crate::node::set_child(t.cache.block_mut(leaf), entry, now);
    }
    Ok(slot)
}

/// Makes an array without values; its root.
///
/// # Errors
/// When no metadata block is free.
pub async fn empty(store: &mut Store) -> Result<u64, Error> {
    btree::empty::<Root>(store).await
}

/// Value `index`, if the array has so many.
///
/// # Errors
/// When a block cannot be read or is damaged.
pub async fn get<V: Value>(store: &mut Store, root: u64, index: u64) -> Result<Option<V>, Error> {
    let (number, i) = place::<V>(index);
    (store.read(|t| {
        let Some(slot) = find::<V>(t, root, number)? else { return Ok(None) };
        let block = t.cache.block(slot);
        Ok((i < len(block)).then(|| V::decode(bytes::<V>(block, i))))
    }))
    .await
}

/// Appends all values of the block that has value `index` to `into`; which values these are. Nothing when there is no
/// such block.
///
/// # Errors
/// As [`get`].
pub async fn block<V: Value>(store: &mut Store, root: u64, index: u64, into: &mut Vec<V>) -> Result<Range<u64>, Error> {
    let (number, _) = place::<V>(index);
    let count = (store.read(|t| {
        let Some(slot) = find::<V>(t, root, number)? else { return Ok(0) };
        let block = t.cache.block(slot);
        into.extend((0..len(block)).map(|i| V::decode(bytes::<V>(block, i))));
        Ok(len(block) as u64)
    }))
    .await?;
    let first = number * array_max_entries(V::SIZE) as u64;
    Ok(first..first + count)
}

/// Calls `each` with every value and its index, in order, block by block.
///
/// # Errors
/// As [`get`].
pub async fn walk<V: Value>(store: &mut Store, root: u64, mut each: impl FnMut(u64, V)) -> Result<(), Error> {
    let (mut index, mut values) = (0, Vec::new());
    loop {
        values.clear();
        let some = block::<V>(store, root, index, &mut values).await?;
        if some.is_empty() {
            return Ok(());
        }
        values.iter().zip(some.clone()).for_each(|(value, index)| each(index, *value));
        index = some.end;
        if place::<V>(index).1 != 0 {
            return Ok(());
        }
    }
}

/// Makes `value` value number `index`, which the array has; returns the one that it replaces. References as in
/// [`btree::insert`].
///
/// # Errors
/// As [`btree::insert`]; [`Error::Refused`] when the array has no such value.
pub async fn set<V: Value>(store: &mut Store, root: &mut u64, index: u64, value: V) -> Result<V, Error> {
    let (number, i) = place::<V>(index);
    (store.change(|t| {
        let slot = find::<V>(t, *root, number)?;
        if slot.is_none_or(|slot| i >= len(t.cache.block(slot))) {
            return Err(Error::Refused(format!("the array has no value {index}")).into());
        }
        let slot = own::<V>(t, root, number)?;
        let bytes = bytes_mut::<V>(t.cache.block_mut(slot), i);
        let old = V::decode(bytes);
        value.encode(bytes);
        Ok(old)
    }))
    .await
}

/// Lets the array, which has `from` values, have `to` of them, the new ones all `value`; each new one counts a
/// reference to what `value` refers to, beside the caller's.
///
/// # Errors
/// As [`btree::insert`]; [`Error::Refused`] when `to` is less than `from`, or the array has not got `from` values.
pub async fn grow<V: Value>(store: &mut Store, root: &mut u64, from: u64, to: u64, value: V) -> Result<(), Error> {
    if to < from {
        return Err(Error::Refused(format!("this does not make an array of {from} values one of {to}")));
    }
    let mut now = from;
    while now < to {
        let (number, i) = place::<V>(now);
        let many = array_max_entries(V::SIZE).min(i + usize::try_from(to - now).unwrap_or(usize::MAX));
        if i > 0 {
            store.change(|t| extend_block::<V>(t, root, number, i, many, value)).await?;
        } else {
            let at = store.change(|t| new_block::<V>(t, many, value)).await?;
            let old = btree::insert(store, root, number, Root(at)).await?;
            if old.is_some() {
                let field = "a block that the array was not said to have";
                return Err(Error::damage(*root, Kind::Node, field, number, "none"));
            }
        }
        now += (many - i) as u64;
    }
    Ok(())
}

fn new_block<V: Value>(t: &mut Transaction, many: usize, value: V) -> Attempt<u64> {
    let refs = vec![value.refers_to(); many];
    t.touch(&refs, 0, Kind::Array)?;
    let slot = t.new_block(Kind::Array)?;
    t.count(&refs, true)?;
    let block = t.cache.block_mut(slot);
    block.0[4..8].copy_from_slice(&(array_max_entries(V::SIZE) as u32).to_le_bytes());
    block.0[12..16].copy_from_slice(&(V::SIZE as u32).to_le_bytes());
    fill(block, 0, many, value);
    Ok(t.cache.at(slot))
}

fn extend_block<V: Value>(
    t: &mut Transaction,
    root: &mut u64,
    number: u64,
    from: usize,
    to: usize,
    value: V,
) -> Attempt<()> {
    let slot = find::<V>(t, *root, number)?;
    let found = slot.map_or(0, |slot| len(t.cache.block(slot)));
    if found != from {
        let text = format!("block {number} of the array has {found} values, not {from}");
        return Err(Error::Refused(text).into());
    }
    let slot = own::<V>(t, root, number)?;
    let refs = vec![value.refers_to(); to - from];
    t.touch(&refs, t.cache.at(slot), Kind::Array)?;
    t.count(&refs, true)?;
    fill(t.cache.block_mut(slot), from, to, value);
    Ok(())
}

fn fill<V: Value>(block: &mut Block, from: usize, to: usize, value: V) {
    for i in from..to {
        value.encode(bytes_mut::<V>(block, i));
    }
    block.0[8..12].copy_from_slice(&(to as u32).to_le_bytes());
}
