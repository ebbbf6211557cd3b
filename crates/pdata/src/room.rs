//! How many metadata blocks a commit takes at worst, so that nobody begins what may not be committed.
//!
//! A commit places the space map's own bitmaps and index (each moves once), and tells three trees what was remembered:
//! the index of the data space map, and the large counts of both maps. How many nodes that takes follows from how many
//! keys are to be told and how many leaves the tree has. Bounds here are for nodes a third full, as removing leaves
//! them, and for every full leaf met being split.

use crate::btree::leaves;
use crate::cache::Attempt;
use crate::error::Space;
use crate::layout::ENTRIES_PER_BITMAP;
use crate::overflow::Overflow;
use crate::store::Store;
use crate::transaction::Transaction;

/// Entries of a node that is a third full: of the trees of large counts, of the index, and of any tree's inner nodes.
const COUNTS: u64 = 112;
const INDEX: u64 = 56;
const INNER: u64 = 84;

/// What a change may take at worst, besides what the commit after it does.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Needs {
    /// Nodes of the caller's trees.
    pub nodes: u64,
    /// Data blocks that get or lose a reference.
    pub data: u64,
    /// Metadata blocks that do, of those that the change does not allocate.
    pub metadata: u64,
}

/// For `told` keys in a tree of so many leaves. `new`: they may be new, or go.
fn tree(told: u64, leaves: u64, per_leaf: u64, new: bool) -> u64 {
    if told == 0 {
        return 0;
    }
    let inner = if leaves == 1 { 0 } else { leaves / INNER + 3 };
    if !new {
        return told.min(leaves) + inner;
    }
    // With a leaf its neighbours.
    let copied = told.saturating_mul(3).min(leaves);
    let made = told.min(leaves) + told / per_leaf;
    copied + inner + made + made / INNER + 3
}

impl Store {
    /// Whether a change that takes no more than `needs` can be made, and committed after that. No such change ends with
    /// [`NoSpace`](crate::Error::NoSpace), and neither does the commit. `false` does not say that it would: a commit
    /// before the change helps, for it gives back what the open transaction has replaced.
    #[must_use]
    pub fn has_room(&self, needs: &Needs) -> bool {
        let t = self.transaction();
        let (bitmaps, mut take) = match &t.data {
            None => (0, 0),
            Some(data) => {
                let all = data.nr_blocks().div_ceil(ENTRIES_PER_BITMAP);
                let bitmaps = needs.data.min(all);
                let told = (data.dirty() as u64 + bitmaps).min(all);
                let counts = data.overflow.remembered() as u64 + needs.data.min(data.nr_allocated());
                let index = tree(told, all.div_ceil(INDEX).max(1), INDEX, false);
                (bitmaps, index + tree(counts, data.overflow.leaves, COUNTS, true))
            }
        };
        let counts = t.metadata.overflow.remembered() as u64 + needs.metadata.min(t.metadata.nr_allocated());
        take += tree(counts, t.metadata.overflow.leaves, COUNTS, true) + t.metadata.places();
        // What is no commit leaves the reserve alone, whatever a commit takes.
        let change = needs.nodes + bitmaps;
        t.metadata.available() >= change.saturating_add(take.max(t.metadata.reserve())).saturating_add(1)
    }

    /// Looks how large the trees of large counts are.
    pub(crate) async fn measure(&mut self) {
        for space in [Space::Metadata, Space::Data] {
            if self.read(|t| t.measure(space)).await.is_err() {
                // Who reads it for its counts will say what is wrong with it.
                self.transaction_mut().overflow(space).leaves = u64::MAX;
            }
        }
    }
}

impl Transaction {
    /// Looks how many leaves a tree of large counts has.
    fn measure(&mut self, space: Space) -> Attempt<()> {
        let root = self.overflow(space).root;
        let leaves = leaves(self, root)?;
        self.overflow(space).leaves = leaves;
        Ok(())
    }

    /// The same after so many keys were told, without a wait.
    pub(crate) fn measure_again(&mut self, space: Space, told: usize) {
        if self.measure(space).is_err() {
            let Overflow { leaves, .. } = self.overflow(space);
            *leaves = leaves.saturating_add(told as u64);
        }
    }
}
