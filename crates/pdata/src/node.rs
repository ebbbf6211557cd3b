//! A btree's node: reading it and changing it in place. What enters here was checked once, by [`check`].

use std::mem::size_of;

use zerocopy::{FromBytes, FromZeros, IntoBytes};

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

    /// `block`, of which [`read`](Self::read) has seen that it is a node, or that was made here.
    ///
    /// Of any other block the methods may panic.
    #[must_use]
    pub fn checked(block: &'a Block) -> Self {
        Self { block }
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

/// Fewer entries than this are too few, for any node but a root (`merge_threshold`, `dm-btree-remove.c`; `thin_check`
/// sees to it).
pub(crate) fn least(max: usize) -> usize {
    max / 3
}

fn set_len(block: &mut Block, len: usize) {
    let len = u32::try_from(len).expect("a node is small");
    block.0[16..20].copy_from_slice(&len.to_le_bytes());
}

/// Makes `block` an empty node.
pub(crate) fn init(block: &mut Block, leaf: bool, value_size: usize) {
    block.0.fill(0);
    let head = NodeHeader {
        flags: if leaf { LEAF } else { INTERNAL }.into(),
        max_entries: u32::try_from(max_entries(value_size)).expect("small").into(),
        value_size: u32::try_from(value_size).expect("small").into(),
        ..NodeHeader::new_zeroed()
    };
    block.0[..HEAD].copy_from_slice(head.as_bytes());
}

pub(crate) fn set_key(block: &mut Block, i: usize, key: u64) {
    let at = HEAD + i * 8;
    block.0[at..at + 8].copy_from_slice(&key.to_le_bytes());
}

/// The bytes of the value of entry `i`.
pub(crate) fn value_mut(block: &mut Block, i: usize) -> &mut [u8] {
    let node = Node::checked(block);
    let size = node.value_size();
    let at = HEAD + node.max() * 8 + i * size;
    &mut block.0[at..at + size]
}

pub(crate) fn set_child(block: &mut Block, i: usize, child: u64) {
    value_mut(block, i).copy_from_slice(&child.to_le_bytes());
}

/// Makes room for an entry at `i` of a node that is not full, and writes its key; the value is for the caller.
pub(crate) fn insert(block: &mut Block, i: usize, key: u64) -> &mut [u8] {
    let node = Node::checked(block);
    let (len, max, size) = (node.len(), node.max(), node.value_size());
    assert!(i <= len && len < max, "room was made before");
    let keys = HEAD + i * 8;
    block.0.copy_within(keys..HEAD + len * 8, keys + 8);
    let values = HEAD + max * 8;
    let at = values + i * size;
    block.0.copy_within(at..values + len * size, at + size);
    set_len(block, len + 1);
    set_key(block, i, key);
    &mut block.0[at..at + size]
}

/// Removes entries `from..to`.
pub(crate) fn remove(block: &mut Block, from: usize, to: usize) {
    let node = Node::checked(block);
    let (len, max, size) = (node.len(), node.max(), node.value_size());
    assert!(from <= to && to <= len, "entries that are there");
    block.0.copy_within(HEAD + to * 8..HEAD + len * 8, HEAD + from * 8);
    let values = HEAD + max * 8;
    block.0.copy_within(values + to * size..values + len * size, values + from * size);
    set_len(block, len - (to - from));
}

/// The entries of neighbouring nodes, on their way to other nodes.
#[derive(Default)]
pub(crate) struct Entries {
    keys: Vec<u8>,
    values: Vec<u8>,
}

impl Entries {
    /// Adds the entries of `node`.
    pub(crate) fn gather(&mut self, node: Node<'_>) {
        let (len, size) = (node.len(), node.value_size());
        let values = HEAD + node.max() * 8;
        self.keys.extend_from_slice(&node.block.0[HEAD..HEAD + len * 8]);
        self.values.extend_from_slice(&node.block.0[values..values + len * size]);
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.keys.len() / 8
    }

    /// Makes entries `from..to` those of `block`, a node of the same kind.
    pub(crate) fn put(&self, block: &mut Block, from: usize, to: usize) {
        let node = Node::checked(block);
        let (max, size) = (node.max(), node.value_size());
        assert!(to - from <= max, "as many as fit");
        block.0[HEAD..HEAD + (to - from) * 8].copy_from_slice(&self.keys[from * 8..to * 8]);
        let values = HEAD + max * 8;
        block.0[values..values + (to - from) * size].copy_from_slice(&self.values[from * size..to * size]);
        set_len(block, to - from);
    }
}
