//! Removing. What is removed leaves a leaf with fewer entries; [`mend`] sees to it afterwards that no node on the way
//! there but the root has fewer than a third: it merges neighbours, or evens them out (`dm-btree-remove.c`; the kernel
//! does it on the way down).

use super::insert::{check_sibling, spread};
use super::lookup::find_leaf;
use super::{MAX_DEPTH, Span, check_node, too_deep};
use crate::cache::{Attempt, Slot};
use crate::error::{Error, Kind};
use crate::node::{self, Entries, least};
use crate::store::Store;
use crate::transaction::Transaction;
use crate::value::Value;

/// Removes `key`, and returns its value. The tree's reference to what the value refers to is the caller's from now on.
///
/// # Errors
/// As [`super::insert()`].
pub async fn remove<V: Value>(store: &mut Store, root: &mut u64, key: u64) -> Result<Option<V>, Error> {
    let old = store.change(|t| attempt_take(t, root, key)).await?;
    if old.is_some() {
        store.change(|t| mend::<V>(t, root, key)).await?;
    }
    Ok(old)
}

/// Removes `key` if it is there, and mends the tree on its way also if it is not: an attempt that was repeated finds it
/// gone.
pub(crate) fn attempt_remove<V: Value>(t: &mut Transaction, root: &mut u64, key: u64) -> Attempt<()> {
    attempt_take::<V>(t, root, key)?;
    mend::<V>(t, root, key)
}

fn attempt_take<V: Value>(t: &mut Transaction, root: &mut u64, key: u64) -> Attempt<Option<V>> {
    let (slot, _) = find_leaf::<V>(t, *root, key)?;
    let node = t.node(slot);
    let Some(i) = node.at_most(key).filter(|i| node.key(*i) == key) else { return Ok(None) };
    let old = V::decode(node.value(i));
    let slot = own_leaf::<V>(t, root, key)?;
    node::remove(t.cache.block_mut(slot), i, i + 1);
    Ok(Some(old))
}

/// The leaf that would hold `key`, and the way there, made the transaction's own.
pub(crate) fn own_leaf<V: Value>(t: &mut Transaction, root: &mut u64, key: u64) -> Attempt<Slot> {
    let mut slot = t.own_root::<V>(root)?;
    for _ in 0..MAX_DEPTH {
        let node = t.node(slot);
        if node.is_leaf() {
            return Ok(slot);
        }
        let i = node.at_most(key).unwrap_or(0);
        slot = t.own_child::<V>(slot, i)?;
    }
    Err(too_deep(*root).into())
}

/// Mends the nodes on the way to `key`, from the root down, until none has too few entries.
pub(crate) fn mend<V: Value>(t: &mut Transaction, root: &mut u64, key: u64) -> Attempt<()> {
    // Each change makes the tree one node smaller or ends the search on one level for good.
    loop {
        let slot = t.read_node(*root, *root)?;
        let node = t.node(slot);
        if node.is_leaf() {
            return Ok(());
        }
        match node.len() {
            0 => {
                let slot = t.own_root::<V>(root)?;
                node::init(t.cache.block_mut(slot), true, V::SIZE);
                return Ok(());
            }
            1 => drop_root::<V>(t, root)?,
            _ => {
                if !mend_below::<V>(t, root, key)? {
                    return Ok(());
                }
            }
        }
    }
}

/// Makes the root's only child the root.
fn drop_root<V: Value>(t: &mut Transaction, root: &mut u64) -> Attempt<()> {
    let slot = t.own_root::<V>(root)?;
    let child = t.node(slot).child(0);
    t.check_metadata(child, *root, Kind::Node)?;
    let old = std::mem::replace(root, child);
    Ok(t.count_metadata(old, false)?)
}

/// Mends the first node on the way to `key` that needs it; whether there was one.
fn mend_below<V: Value>(t: &mut Transaction, root: &mut u64, key: u64) -> Attempt<bool> {
    let mut slot = t.read_node(*root, *root)?;
    let mut span = Span::ALL;
    let mut way = [0; MAX_DEPTH];
    for depth in 0..MAX_DEPTH {
        let node = t.node(slot);
        if node.is_leaf() {
            return Ok(false);
        }
        let (at, i) = (t.cache.at(slot), node.at_most(key).unwrap_or(0));
        check_node::<V>(node, at, span, depth == 0)?;
        span = span.child(node, i);
        way[depth] = i;
        let child = node.child(i);
        let siblings = node.len() > 1;
        slot = t.read_node(child, at)?;
        let below = t.node(slot);
        if below.len() < least(below.max()) && siblings {
            let mut above = t.own_root::<V>(root)?;
            for i in &way[..depth] {
                above = t.own_child::<V>(above, *i)?;
            }
            rebalance::<V>(t, above, i)?;
            return Ok(true);
        }
    }
    Err(too_deep(*root).into())
}

/// Evens out entry `i` of `above` and its one or two siblings, with one node less if that leaves no node too full
/// (`rebalance2`, `rebalance3`).
fn rebalance<V: Value>(t: &mut Transaction, above: Slot, i: usize) -> Attempt<()> {
    let first = i.saturating_sub(1);
    let last = (i + 1).min(t.node(above).len() - 1);
    let mut slots = Vec::with_capacity(3);
    for i in first..=last {
        let slot = t.own_child::<V>(above, i)?;
        if let Some(sibling) = slots.first() {
            same_level(t, *sibling, slot)?;
        }
        slots.push(slot);
    }
    let total: usize = slots.iter().map(|slot| t.node(*slot).len()).sum();
    let threshold = least(t.node(slots[0]).max()) * 2 * (slots.len() - 1) + 1;
    if total >= threshold {
        spread(t, above, first, &slots);
        return Ok(());
    }
    // The last node's entries go to the ones before it.
    let gone = slots.pop().expect("two at least");
    let mut entries = Entries::default();
    for slot in slots.iter().chain([&gone]) {
        entries.gather(t.node(*slot));
    }
    let mut from = 0;
    for (n, slot) in slots.iter().enumerate() {
        let to = from + (total - from) / (slots.len() - n);
        entries.put(t.cache.block_mut(*slot), from, to);
        if n > 0 && from < to {
            let key = t.node(*slot).key(0);
            node::set_key(t.cache.block_mut(above), first + n, key);
        }
        from = to;
    }
    node::remove(t.cache.block_mut(above), last, last + 1);
    let at = t.cache.at(gone);
    Ok(t.count_metadata(at, false)?)
}

/// As [`check_sibling`], but a node may have lost all its entries.
fn same_level(t: &Transaction, a: Slot, b: Slot) -> Result<(), Error> {
    if t.node(b).len() == 0 && t.node(a).is_leaf() == t.node(b).is_leaf() {
        return Ok(());
    }
    check_sibling(t, a, b)
}
