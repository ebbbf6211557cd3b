//! Deleting a whole tree, some at a time.

use std::marker::PhantomData;

use super::range::remove_some;
use crate::error::Error;
use crate::store::Store;
use crate::value::Value;

/// A tree that is being deleted. Between two steps it is a whole tree with fewer entries: who commits then has to have
/// written [`root`](Self::root) to where the tree's root was before, so that nothing is lost when the power goes.
#[derive(Debug)]
pub struct Deletion<V> {
    root: u64,
    next: Option<u64>,
    done: bool,
    value: PhantomData<fn() -> V>,
}

impl<V: Value> Deletion<V> {
    /// Will delete the tree at `root`: takes over the caller's reference to it.
    #[must_use]
    pub fn new(root: u64) -> Self {
        Self { root, next: Some(0), done: false, value: PhantomData }
    }

    /// The root as it is now; of no meaning when all is done.
    #[must_use]
    pub fn root(&self) -> u64 {
        self.root
    }

    /// Deletes about `budget` leaves; whether nothing is left. What is shared with other trees costs one step however
    /// big it is.
    ///
    /// # Errors
    /// As [`super::insert()`].
    pub async fn step(&mut self, store: &mut Store, budget: usize) -> Result<bool, Error> {
        if self.done {
            return Ok(true);
        }
        if store.ref_count(self.root).await? == 1 {
            if let Some(from) = self.next {
                let removed = remove_some::<V>(store, &mut self.root, from, u64::MAX, budget, false).await?;
                self.next = removed.next;
            }
            if self.next.is_some() {
                return Ok(false);
            }
        }
        store.dec(self.root).await?;
        self.done = true;
        Ok(true)
    }
}
