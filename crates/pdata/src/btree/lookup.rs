//! Finding things.

use std::ops::RangeInclusive;

use super::{MAX_DEPTH, Span, check_node, too_deep};
use crate::cache::{Attempt, Slot};
use crate::error::Error;
use crate::node::Node;
use crate::store::Store;
use crate::transaction::Transaction;
use crate::value::Value;

/// The leaf that would hold `key`, and the keys that no other leaf can hold.
pub(crate) fn find_leaf<V: Value>(t: &mut Transaction, root: u64, key: u64) -> Attempt<(Slot, Span)> {
    let (mut at, mut from, mut span) = (root, root, Span::ALL);
    for depth in 0..MAX_DEPTH {
        let slot = t.read_node(at, from)?;
        let node = t.node(slot);
        check_node::<V>(node, at, span, depth == 0)?;
        if node.is_leaf() {
            return Ok((slot, span));
        }
        let i = node.at_most(key).unwrap_or(0);
        span = span.child(node, i);
        from = at;
        at = node.child(i);
    }
    Err(too_deep(root).into())
}

fn get<V: Value>(node: Node<'_>, i: usize) -> (u64, V) {
    (node.key(i), V::decode(node.value(i)))
}

pub(crate) fn attempt_lookup<V: Value>(t: &mut Transaction, root: u64, key: u64) -> Attempt<Option<V>> {
    let (slot, _) = find_leaf::<V>(t, root, key)?;
    let node = t.node(slot);
    let found = node.at_most(key).filter(|i| node.key(*i) == key);
    Ok(found.map(|i| V::decode(node.value(i))))
}

/// The value of `key`. About 0.2 µs when all nodes are in memory.
///
/// # Errors
/// When a node cannot be read, or is damaged.
pub async fn lookup<V: Value>(store: &mut Store, root: u64, key: u64) -> Result<Option<V>, Error> {
    store.read(|t| attempt_lookup(t, root, key)).await
}

/// The entry with the largest key that is at most `key`.
///
/// # Errors
/// As [`lookup`].
pub async fn lookup_le<V: Value>(store: &mut Store, root: u64, key: u64) -> Result<Option<(u64, V)>, Error> {
    let mut towards = key;
    loop {
        let (found, span) = (store.read(|t| {
            let (slot, span) = find_leaf::<V>(t, root, towards)?;
            let node = t.node(slot);
            Ok((node.at_most(key).map(|i| get(node, i)), span))
        }))
        .await?;
        match (found, span.low.checked_sub(1)) {
            (Some(found), _) => return Ok(Some(found)),
            (None, None) => return Ok(None),
            (None, Some(before)) => towards = before,
        }
    }
}

/// The entry with the smallest key that is at least `key`.
///
/// # Errors
/// As [`lookup`].
pub async fn lookup_ge<V: Value>(store: &mut Store, root: u64, key: u64) -> Result<Option<(u64, V)>, Error> {
    let mut towards = key;
    loop {
        let (found, span) = (store.read(|t| {
            let (slot, span) = find_leaf::<V>(t, root, towards)?;
            let node = t.node(slot);
            let i = key.checked_sub(1).and_then(|before| node.at_most(before)).map_or(0, |i| i + 1);
            Ok(((i < node.len()).then(|| get(node, i)), span))
        }))
        .await?;
        match (found, span.high.checked_add(1)) {
            (Some(found), _) => return Ok(Some(found)),
            (None, None) => return Ok(None),
            (None, Some(after)) => towards = after,
        }
    }
}

/// Appends all entries of the leaf that holds `key` or would hold it to `into`, in order. Of the keys in the range that
/// is returned, which `key` is in, the tree has these and no others.
///
/// # Errors
/// As [`lookup`].
pub async fn leaf<V: Value>(
    store: &mut Store,
    root: u64,
    key: u64,
    into: &mut Vec<(u64, V)>,
) -> Result<RangeInclusive<u64>, Error> {
    let span = (store.read(|t| {
        let (slot, span) = find_leaf::<V>(t, root, key)?;
        let node = t.node(slot);
        into.extend((0..node.len()).map(|i| get(node, i)));
        Ok(span)
    }))
    .await?;
    Ok(span.low..=span.high)
}

/// A walk over the entries of a range of keys, leaf by leaf. The tree may change between two steps: what is ahead of
/// the walk is seen as it is then.
#[derive(Debug)]
pub struct Walk<V> {
    root: u64,
    next: Option<u64>,
    last: u64,
    entries: Vec<(u64, V)>,
}

impl<V: Value> Walk<V> {
    /// Over the entries of the tree at `root` with keys in `range`.
    #[must_use]
    pub fn new(root: u64, range: RangeInclusive<u64>) -> Self {
        let (first, last) = range.into_inner();
        Self { root, next: (first <= last).then_some(first), last, entries: Vec::new() }
    }

    /// The entries of the next leaf that has any, or `None` after the last. Reads that leaf.
    ///
    /// # Errors
    /// As [`lookup`].
    pub async fn next(&mut self, store: &mut Store) -> Result<Option<&[(u64, V)]>, Error> {
        loop {
            let Some(first) = self.next else { return Ok(None) };
            self.entries.clear();
            let span = leaf(store, self.root, first, &mut self.entries).await?;
            self.next = span.end().checked_add(1).filter(|next| *next <= self.last);
            let from = self.entries.partition_point(|(key, _)| *key < first);
            let to = self.entries.partition_point(|(key, _)| *key <= self.last);
            if from < to {
                return Ok(Some(&self.entries[from..to]));
            }
        }
    }
}

/// How many leaves the tree has, or may have at most if it is higher than three levels.
pub(crate) fn leaves(t: &mut Transaction, root: u64) -> Attempt<u64> {
    let (mut leaves, mut first) = (0, None);
    let slot = t.read_node(root, root)?;
    let top = t.node(slot);
    if top.is_leaf() {
        return Ok(1);
    }
    let children: Vec<u64> = (0..top.len()).map(|i| top.child(i)).collect();
    for child in &children {
        let slot = t.read_node(*child, root)?;
        let node = t.node(slot);
        if node.is_leaf() {
            // So are all.
            return Ok(children.len() as u64);
        }
        leaves += node.len() as u64;
        first = first.or(Some((node.child(0), *child)).filter(|_| node.len() > 0));
    }
    let Some((below, from)) = first else { return Ok(1) };
    let slot = t.read_node(below, from)?;
    let node = t.node(slot);
    let most = node.max() as u64;
    Ok(if node.is_leaf() { leaves } else { leaves.saturating_mul(most).saturating_mul(most) })
}
