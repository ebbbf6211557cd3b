//! A btree's node: reading it and changing it in place. What enters here was checked once, by [`check`].

use std::mem::size_of;

use zerocopy::FromBytes;

use crate::block::{BLOCK_SIZE, Block};
use crate::error::{Error, Kind};
use crate::layout::{INTERNAL, LEAF, NodeHeader, max_entries, word};

const HEAD: usize = size_of::<NodeHeader>();

/// A node of a tree, of which [`check`] has seen that all its entries lie within the block.
#[derive(Clone, Copy)]
pub struct Node<'a> {
    block: &'a Block,
}

fn header(block: &Block) -> &NodeHeader {
    NodeHeader::ref_from_prefix(&block.0).expect("a block is longer than a head").0
}

/// What [`crate::layout::check`] asks of a node beyond checksum and place.
pub(crate) fn check(block: &Block, at: u64) -> Result<(), Error> {
    let bad = |field, found: u64, expected: String| Err(Error::damage(at, Kind::Node, field, found, expected));
    let head = header(block);
    let (flags, nr, max, size) =
        (head.flags.get(), head.nr_entries.get(), head.max_entries.get(), head.value_size.get());
    if flags != INTERNAL && flags != LEAF {
        return bad("flags", flags.into(), "1 (internal) or 2 (leaf)".into());
    }
    if flags == INTERNAL && size != 8 {
        return bad("value_size", size.into(), "8 in an internal node".into());
    }
    // Three entries at least, or a full node could not be split.
    let most = (BLOCK_SIZE - HEAD) / 3 - 8;
    if size as usize > most {
        return bad("value_size", size.into(), format!("at most {most}"));
    }
    let fit = max_entries(size as usize);
    if max as usize != fit {
        return bad("max_entries", max.into(), fit.to_string());
    }
    if nr > max {
        return bad("nr_entries", nr.into(), format!("at most {max}"));
    }
    let node = Node { block };
    for i in 1..nr as usize {
        let (before, key) = (node.key(i - 1), node.key(i));
        if before >= key {
            return bad("a key", key, format!("more than the key before it, {before}"));
        }
    }
    Ok(())
}

impl<'a> Node<'a> {
    /// `block` as a node.
    ///
    /// # Errors
    /// As [`crate::layout::check`].
    pub fn read(block: &'a Block, at: u64) -> Result<Self, Error> {
        crate::layout::check(block, Kind::Node, at)?;
        Ok(Self { block })
    }

    /// Whether its values are the tree's, not children.
    #[must_use]
    pub fn is_leaf(self) -> bool {
        header(self.block).flags.get() == LEAF
    }

    /// How many entries it has.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "nobody asks")]
    pub fn len(self) -> usize {
        header(self.block).nr_entries.get() as usize
    }

    /// How many entries it can have.
    #[must_use]
    pub fn max(self) -> usize {
        header(self.block).max_entries.get() as usize
    }

    /// Bytes of a value.
    #[must_use]
    pub fn value_size(self) -> usize {
        header(self.block).value_size.get() as usize
    }

    /// The key of entry `i`.
    #[must_use]
    pub fn key(self, i: usize) -> u64 {
        word(self.block, HEAD + i * 8)
    }

    /// The bytes of the value of entry `i`.
    #[must_use]
    pub fn value(self, i: usize) -> &'a [u8] {
        let size = self.value_size();
        let at = HEAD + self.max() * 8 + i * size;
        &self.block.0[at..at + size]
    }

    /// The block of child `i` of an internal node.
    #[must_use]
    pub fn child(self, i: usize) -> u64 {
        word(self.block, HEAD + self.max() * 8 + i * 8)
    }

    /// The last entry whose key is at most `key`.
    #[must_use]
    pub fn at_most(self, key: u64) -> Option<usize> {
        let (mut low, mut high) = (0, self.len());
        while low < high {
            let middle = usize::midpoint(low, high);
            if self.key(middle) <= key { low = middle + 1 } else { high = middle }
        }
        low.checked_sub(1)
    }
}
