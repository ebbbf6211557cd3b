//! Removing ranges of keys: whole leaves at a time, and whole subtrees where nobody asks how many entries they had.

use super::lookup::find_leaf;
use super::remove::{mend, own_leaf};
use super::{MAX_DEPTH, Span, check_node, too_deep};
use crate::cache::{Attempt, Slot};
use crate::error::{Error, Kind};
use crate::node::{self, Node};
use crate::store::Store;
use crate::transaction::Transaction;
use crate::value::{Ref, Value};

/// What [`remove_range`] did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Removed {
    /// How many entries were removed.
    pub entries: u64,
    /// Where to go on; `None` when nothing of the range is left.
    pub next: Option<u64>,
}

/// Removes the entries with keys from `from` to `to`, both included, and drops the references of their values, but does
/// no more than about `budget` leaves' worth of work (a leaf: about 5 µs when it is in memory and nobody else's). The
/// tree is whole afterwards and can be committed.
///
/// Values may refer to data or to nothing: who removes values that refer to other trees has to see to those.
///
/// # Errors
/// As [`super::insert()`].
pub async fn remove_range<V: Value>(
    store: &mut Store,
    root: &mut u64,
    from: u64,
    to: u64,
    budget: usize,
) -> Result<Removed, Error> {
    remove_some::<V>(store, root, from, to, budget, true).await
}

/// As [`remove_range`], but parts of the tree that are shared are dropped without a look unless they are to be
/// `counted`.
pub(super) async fn remove_some<V: Value>(
    store: &mut Store,
    root: &mut u64,
    from: u64,
    to: u64,
    budget: usize,
    counted: bool,
) -> Result<Removed, Error> {
    let mut done = Removed { entries: 0, next: Some(from).filter(|from| *from <= to) };
    for _ in 0..budget.max(1) {
        let Some(from) = done.next else { break };
        let (step, changed) = store.change(|t| step::<V>(t, root, from, to, counted)).await?;
        if changed {
            store.change(|t| mend::<V>(t, root, from)).await?;
        }
        done.entries += step.entries;
        done.next = step.next;
    }
    Ok(done)
}

/// Removes what one leaf has of the range, or one subtree; and whether that was anything.
fn step<V: Value>(t: &mut Transaction, root: &mut u64, from: u64, to: u64, counted: bool) -> Attempt<(Removed, bool)> {
    let after = |span: Span| span.high.checked_add(1).filter(|next| *next <= to);
    let (mut at, mut above, mut span) = (*root, *root, Span::ALL);
    let mut way = [0; MAX_DEPTH];
    for depth in 0..MAX_DEPTH {
        let slot = t.read_node(at, above)?;
        let node = t.node(slot);
        check_node::<V>(node, at, span, depth == 0)?;
        if node.is_leaf() {
            let covered = depth > 0 && from <= span.low && span.high <= to;
            let (first, last) = within(node, from, to);
            let removed = Removed { entries: (last - first) as u64, next: after(span) };
            if first == last {
                return Ok((removed, false));
            }
            if covered {
                drop_child::<V>(t, root, &way[..depth])?;
            } else {
                drop_entries::<V>(t, root, from, to)?;
            }
            return Ok((removed, true));
        }
        let i = node.at_most(from).unwrap_or(0);
        way[depth] = i;
        span = span.child(node, i);
        above = at;
        at = node.child(i);
        t.check_metadata(at, above, Kind::Node)?;
        if !counted && t.metadata.bits(at) > 1 && from <= span.low && span.high <= to {
            drop_child::<V>(t, root, &way[..=depth])?;
            return Ok((Removed { entries: 0, next: after(span) }, true));
        }
    }
    Err(too_deep(*root).into())
}

/// Which entries of `node` are in the range.
fn within(node: Node<'_>, from: u64, to: u64) -> (usize, usize) {
    let first = from.checked_sub(1).and_then(|before| node.at_most(before)).map_or(0, |i| i + 1);
    (first, node.at_most(to).map_or(0, |i| i + 1).max(first))
}

/// Drops the child to which the entries `way` lead.
fn drop_child<V: Value>(t: &mut Transaction, root: &mut u64, way: &[usize]) -> Attempt<()> {
    let (last, way) = way.split_last().expect("not the root");
    let mut parent = t.own_root::<V>(root)?;
    for i in way {
        parent = t.own_child::<V>(parent, *i)?;
    }
    let (from, at) = (t.cache.at(parent), t.node(parent).child(*last));
    t.check_metadata(at, from, Kind::Node)?;
    if t.metadata_count(at)? == 1 {
        let slot = t.read_node(at, from)?;
        drop_refs::<V>(t, slot, 0, t.node(slot).len())?;
    }
    node::remove(t.cache.block_mut(parent), *last, *last + 1);
    Ok(t.count_metadata(at, false)?)
}

/// Drops the entries that one leaf has of the range.
fn drop_entries<V: Value>(t: &mut Transaction, root: &mut u64, from: u64, to: u64) -> Attempt<()> {
    let (slot, _) = find_leaf::<V>(t, *root, from)?;
    let (first, last) = within(t.node(slot), from, to);
    let slot = own_leaf::<V>(t, root, from)?;
    drop_refs::<V>(t, slot, first, last)?;
    node::remove(t.cache.block_mut(slot), first, last);
    Ok(())
}

/// Drops what entries `first..last` of the leaf in `slot` refer to. Nothing after it may stop the attempt.
fn drop_refs<V: Value>(t: &mut Transaction, slot: Slot, first: usize, last: usize) -> Attempt<()> {
    let node = t.node(slot);
    let refs = (first..last).map(|i| V::decode(node.value(i)).refers_to());
    let list: Vec<Ref> = refs.filter(|one| *one != Ref::Uncounted).collect();
    if list.iter().any(|one| matches!(one, Ref::Metadata(_))) {
        return Err(Error::Refused("a range of values that refer to metadata cannot be removed".into()).into());
    }
    let at = t.cache.at(slot);
    t.touch(&list, at, Kind::Node)?;
    Ok(t.count(&list, false)?)
}
