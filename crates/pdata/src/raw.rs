//! Blocks that this crate only counts: their owner reads and writes them.

use crate::error::Error;
use crate::store::Store;

impl Store {
    /// A free metadata block, with one reference, which is the caller's: a copy of a superblock, say. The caller writes
    /// it before the commit, whose flush makes it durable, and gives it back with [`dec`](Self::dec).
    ///
    /// # Errors
    /// As [`btree::insert`](crate::btree::insert).
    pub async fn alloc_block(&mut self) -> Result<u64, Error> {
        self.change(|t| Ok(t.alloc()?)).await
    }
}
