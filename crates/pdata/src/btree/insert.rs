//! Inserting. On the way down every full node gets room, so that its child can be split: entries move to a sibling with
//! room that is not shared, or one node becomes two, or two become three (`rebalance_or_split`, `dm-btree.c`).

use super::{MAX_DEPTH, Span, check_node, too_deep};
use crate::cache::{Attempt, Slot};
use crate::error::{Error, Kind};
use crate::node::{self, Entries, Node};
use crate::store::Store;
use crate::transaction::Transaction;
use crate::value::Value;

/// Makes an empty tree; its root.
///
/// # Errors
/// When no metadata block is free.
pub async fn empty<V: Value>(store: &mut Store) -> Result<u64, Error> {
    store.change(|t| Ok(new_empty::<V>(t)?)).await
}

pub(crate) fn new_empty<V: Value>(t: &mut Transaction) -> Result<u64, Error> {
    let slot = t.new_block(Kind::Node)?;
    node::init(t.cache.block_mut(slot), true, V::SIZE);
    Ok(t.cache.at(slot))
}

/// Makes `value` that of `key`, and returns the value that it replaces. About 0.5 µs when all nodes are in memory and
/// the open transaction's own.
///
/// The tree takes over the caller's reference to what `value` refers to; the tree's reference to what the old value
/// refers to is the caller's from now on.
///
/// # Errors
/// When a node cannot be read or is damaged, or no metadata block is free: the transaction has to be aborted then.
/// `root` may have changed.
pub async fn insert<V: Value>(store: &mut Store, root: &mut u64, key: u64, value: V) -> Result<Option<V>, Error> {
    store.change(|t| attempt_insert(t, root, key, &value)).await
}

pub(crate) fn attempt_insert<V: Value>(t: &mut Transaction, root: &mut u64, key: u64, value: &V) -> Attempt<Option<V>> {
    let mut slot = t.own_root::<V>(root)?;
    let mut span = Span::ALL;
    let mut parent: Option<(Slot, usize, Span)> = None;
    for _ in 0..MAX_DEPTH {
        check_node::<V>(t.node(slot), t.cache.at(slot), span, parent.is_none())?;
        if is_full_for(t.node(slot), key) {
            match parent {
                None => split_beneath(t, slot)?,
                Some((above, i, above_span)) => {
                    make_room::<V>(t, above, i, slot)?;
                    // The entries may have moved: look again from the parent.
                    let i = t.node(above).at_most(key).unwrap_or(0);
                    span = above_span.child(t.node(above), i);
                    slot = t.own_child::<V>(above, i)?;
                    check_node::<V>(t.node(slot), t.cache.at(slot), span, false)?;
                }
            }
        }
        let node = t.node(slot);
        let found = node.at_most(key);
        if node.is_leaf() {
            if let Some(i) = found.filter(|i| node.key(*i) == key) {
                let bytes = node::value_mut(t.cache.block_mut(slot), i);
                let old = V::decode(bytes);
                value.encode(bytes);
                return Ok(Some(old));
            }
            if node.len() == node.max() {
                let found = format!("{} after room was made", node.len());
                return Err(Error::damage(t.cache.at(slot), Kind::Node, "nr_entries", found, "less").into());
            }
            let i = found.map_or(0, |i| i + 1);
            value.encode(node::insert(t.cache.block_mut(slot), i, key));
            return Ok(None);
        }
        let i = found.unwrap_or_else(|| {
            node::set_key(t.cache.block_mut(slot), 0, key);
            0
        });
        let child = t.own_child::<V>(slot, i)?;
        parent = Some((slot, i, span));
        span = span.child(t.node(slot), i);
        slot = child;
    }
    Err(too_deep(*root).into())
}

/// Whether `key` needs room in `node` that it does not have. An internal node needs it for a child that may be split.
fn is_full_for(node: Node<'_>, key: u64) -> bool {
    node.len() == node.max() && !(node.is_leaf() && node.at_most(key).is_some_and(|i| node.key(i) == key))
}

/// Gives the full root two children with its entries. The root stays where it is.
fn split_beneath(t: &mut Transaction, root: Slot) -> Result<(), Error> {
    t.need_space(2)?;
    let (left, right) = (t.new_block(Kind::Node)?, t.new_block(Kind::Node)?);
    let node = t.node(root);
    let (leaf, size, len) = (node.is_leaf(), node.value_size(), node.len());
    let keys = [node.key(0), node.key(len / 2)];
    let mut entries = Entries::default();
    entries.gather(node);
    for (slot, from, to) in [(left, 0, len / 2), (right, len / 2, len)] {
        let block = t.cache.block_mut(slot);
        node::init(block, leaf, size);
        entries.put(block, from, to);
    }
    let children = [t.cache.at(left), t.cache.at(right)];
    let block = t.cache.block_mut(root);
    node::init(block, false, 8);
    for i in 0..2 {
        node::insert(block, i, keys[i]).copy_from_slice(&children[i].to_le_bytes());
    }
    Ok(())
}

/// A sibling with fewer free entries than this is not worth the work (`SPACE_THRESHOLD`).
const WORTH: usize = 8;

/// Makes room in the full node `slot`, which is entry `i` of `above`, which has room.
fn make_room<V: Value>(t: &mut Transaction, above: Slot, i: usize, slot: Slot) -> Attempt<()> {
    let from = t.cache.at(above);
    let parents = t.node(above).len();
    let mut shared = false;
    for sibling in [i.checked_sub(1), Some(i + 1).filter(|i| *i < parents)].into_iter().flatten() {
        let at = t.node(above).child(sibling);
        t.check_metadata(at, from, Kind::Node)?;
        if t.metadata.bits(at) > 1 {
            // To break sharing would take more space than it saves.
            shared = true;
            continue;
        }
        let read = t.read_node(at, from)?;
        check_sibling(t, slot, read)?;
        let node = t.node(read);
        if node.max() - node.len() >= WORTH {
            let other = t.own_child::<V>(above, sibling)?;
            let (left, right) = if sibling < i { (other, slot) } else { (slot, other) };
            spread(t, above, i.max(sibling) - 1, &[left, right]);
            return Ok(());
        }
    }
    if t.node(above).len() == t.node(above).max() {
        return Err(Error::damage(from, Kind::Node, "nr_entries", parents, "less, for a child to be split").into());
    }
    if shared || parents <= 2 || i == 0 || i + 1 == parents {
        let right = new_sibling(t, slot)?;
        insert_child(t, above, i + 1, right);
        spread(t, above, i, &[slot, right]);
    } else {
        let left = t.own_child::<V>(above, i - 1)?;
        let middle = new_sibling(t, slot)?;
        insert_child(t, above, i, middle);
        spread(t, above, i - 1, &[left, middle, slot]);
    }
    Ok(())
}

/// An empty node as that in `slot`.
fn new_sibling(t: &mut Transaction, slot: Slot) -> Result<Slot, Error> {
    let new = t.new_block(Kind::Node)?;
    let node = t.node(slot);
    let (leaf, size) = (node.is_leaf(), node.value_size());
    node::init(t.cache.block_mut(new), leaf, size);
    Ok(new)
}

/// Makes `child` entry `i` of `above`; its key is for [`spread`] to write.
fn insert_child(t: &mut Transaction, above: Slot, i: usize, child: Slot) {
    let at = t.cache.at(child);
    node::insert(t.cache.block_mut(above), i, 0).copy_from_slice(&at.to_le_bytes());
}

/// Whether two neighbours can share their entries.
pub(crate) fn check_sibling(t: &Transaction, a: Slot, b: Slot) -> Result<(), Error> {
    let (x, y) = (t.node(a), t.node(b));
    let what = |node: Node<'_>| {
        format!("a {} with values of {} bytes", if node.is_leaf() { "leaf" } else { "branch" }, node.value_size())
    };
    if x.is_leaf() != y.is_leaf() || x.value_size() != y.value_size() {
        return Err(Error::damage(t.cache.at(b), Kind::Node, "its level", what(y), what(x) + ", as its sibling"));
    }
    if !y.is_leaf() && y.len() == 0 {
        return Err(Error::damage(t.cache.at(b), Kind::Node, "nr_entries", 0, "at least 1"));
    }
    Ok(())
}

/// Spreads the entries of neighbouring nodes, which are entries `first..` of `above`, evenly over them; later ones get
/// no fewer than earlier ones.
pub(crate) fn spread(t: &mut Transaction, above: Slot, first: usize, slots: &[Slot]) {
    let mut entries = Entries::default();
    for slot in slots {
        entries.gather(t.node(*slot));
    }
    let total = entries.len();
    let mut from = 0;
    for (i, slot) in slots.iter().enumerate() {
        let to = from + (total - from) / (slots.len() - i);
        entries.put(t.cache.block_mut(*slot), from, to);
        if i > 0 {
            let key = t.node(*slot).key(0);
            node::set_key(t.cache.block_mut(above), first + i, key);
        }
        from = to;
    }
}
