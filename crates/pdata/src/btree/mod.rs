//! The B+tree (`dm-btree.c`, `dm-btree-remove.c`, 6.12). A tree is its root's block number; `V` says what its leaves
//! hold.
//!
//! *References.* A tree owns one reference to what each of its values refers to. [`insert`] takes over the caller's
//! reference, and the value that it replaces comes back with the tree's; so with [`remove`]. A leaf with several
//! parents is copied before it is changed, and then what its values refer to is counted once more.
//!
//! *Untrusted bytes.* Depth is bounded, keys have to lie in the range that the parent gives, children have to be one
//! level nearer to the leaves or leaves, so that no damage leads in circles.

mod bulk;
mod delete;
mod insert;
mod lookup;
mod range;
mod remove;

pub use bulk::Builder;
pub use delete::Deletion;
pub use insert::{empty, insert};
pub use lookup::{Walk, leaf, lookup, lookup_ge, lookup_le};
pub use range::{Removed, remove_range};
pub use remove::remove;

pub(crate) use insert::attempt_insert;
pub(crate) use lookup::{attempt_lookup, leaves};
pub(crate) use remove::{attempt_remove, own_leaf};

use crate::cache::{Attempt, Slot};
use crate::error::{Error, Kind};
use crate::node::Node;
use crate::transaction::Transaction;
use crate::value::Value;

/// No tree is deeper: with the fewest entries that nodes have, 2^64 keys take fewer levels.
pub(crate) const MAX_DEPTH: usize = 16;

/// The keys that can be in a part of a tree, both ends included.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    pub(crate) low: u64,
    pub(crate) high: u64,
}

impl Span {
    pub(crate) const ALL: Self = Self { low: 0, high: u64::MAX };

    /// What entry `i` of an internal node covers, whose span this is.
    pub(crate) fn child(self, node: Node<'_>, i: usize) -> Self {
        Self {
            low: if i == 0 { self.low } else { node.key(i) },
            high: if i + 1 < node.len() { node.key(i + 1) - 1 } else { self.high },
        }
    }
}

/// Checks a node that is met on the way down: that it is as its place asks.
pub(crate) fn check_node<V: Value>(node: Node<'_>, at: u64, span: Span, is_root: bool) -> Result<(), Error> {
    let bad = |field, found: u64, expected: String| Err(Error::damage(at, Kind::Node, field, found, expected));
    let len = node.len();
    if node.is_leaf() && node.value_size() != V::SIZE {
        return bad("value_size", node.value_size() as u64, format!("{} in a leaf of this tree", V::SIZE));
    }
    if len == 0 {
        if is_root && node.is_leaf() {
            return Ok(());
        }
        return bad("nr_entries", 0, "at least 1".into());
    }
    if node.key(0) < span.low {
        return bad("its first key", node.key(0), format!("at least {}, as its parent says", span.low));
    }
    if node.key(len - 1) > span.high {
        return bad("its last key", node.key(len - 1), format!("at most {}, as its parent says", span.high));
    }
    Ok(())
}

/// A tree that has more levels than can be.
pub(crate) fn too_deep(at: u64) -> Error {
    Error::damage(at, Kind::Node, "its depth", format!("more than {MAX_DEPTH}"), format!("at most {MAX_DEPTH}"))
}

impl Transaction {
    /// The node at `at`, which is reached from `from`.
    pub(crate) fn read_node(&mut self, at: u64, from: u64) -> Attempt<Slot> {
        self.check_metadata(at, from, Kind::Node)?;
        self.cache.find(at, Kind::Node)
    }

    /// The child at entry `i` of the node in `parent`, which is the transaction's own, made its own too.
    pub(crate) fn own_child<V: Value>(&mut self, parent: Slot, i: usize) -> Attempt<Slot> {
        let (from, child) = (self.cache.at(parent), self.node(parent).child(i));
        self.check_metadata(child, from, Kind::Node)?;
        let slot = self.own_node::<V>(child)?;
        let now = self.cache.at(slot);
        if now != child {
            crate::node::set_child(self.cache.block_mut(parent), i, now);
        }
        Ok(slot)
    }

    /// The root made the transaction's own.
    pub(crate) fn own_root<V: Value>(&mut self, root: &mut u64) -> Attempt<Slot> {
        self.check_metadata(*root, *root, Kind::Node)?;
        let slot = self.own_node::<V>(*root)?;
        *root = self.cache.at(slot);
        Ok(slot)
    }
}
