//! A tree's entries in order, with one block in memory for each level. Keys are held against the parent's, and depth is
//! bounded, so that no damage can hang or loop.

use std::marker::PhantomData;
use std::ops::RangeInclusive;

use udm_pdata::node::Node;
use udm_pdata::{Block, BlockIo, Error, Kind, Value};

use super::view::read;

/// A node has 84 children at least where it is not a root: 64-bit keys need ten levels.
pub(super) const DEEPEST: usize = 16;

struct Frame {
    at: u64,
    block: Box<Block>,
    next: usize,
    keys: RangeInclusive<u64>,
}

/// See the module.
pub(super) struct Cursor<'a, V> {
    io: &'a dyn BlockIo,
    stack: Vec<Frame>,
    root: Option<u64>,
    lenient: bool,
    /// What a lenient cursor left out.
    pub(super) lost: Vec<Error>,
    value: PhantomData<fn() -> V>,
}

/// Checks what a node has to be within its tree, beside what [`Node::read`] checks.
pub(super) fn check_place<V: Value>(
    node: Node<'_>,
    at: u64,
    keys: &RangeInclusive<u64>,
    depth: usize,
) -> Result<(), Error> {
    let bad = |field, found: u64, expected: String| Err(Error::damage(at, Kind::Node, field, found, expected));
    if node.is_leaf() && node.value_size() != V::SIZE {
        return bad("value_size", node.value_size() as u64, V::SIZE.to_string());
    }
    if node.len() == 0 && !(node.is_leaf() && depth == 1) {
        return bad("nr_entries", 0, "1 at least in any node but an empty tree's".into());
    }
    if depth > DEEPEST {
        return bad("its depth in the tree", depth as u64, format!("at most {DEEPEST}: there is a cycle"));
    }
    // Keys rise: the ends tell for all.
    for i in [0, node.len().saturating_sub(1)] {
        if node.len() > 0 && !keys.contains(&node.key(i)) {
            let expected = format!("{} to {}, as its parent says", keys.start(), keys.end());
            return bad("a key", node.key(i), expected);
        }
    }
    Ok(())
}

/// The keys that child `i` of `node` may have.
pub(super) fn child_keys(node: Node<'_>, i: usize, keys: &RangeInclusive<u64>) -> RangeInclusive<u64> {
    let end = if i + 1 < node.len() { node.key(i + 1) - 1 } else { *keys.end() };
    node.key(i)..=end
}

impl<'a, V: Value> Cursor<'a, V> {
    /// Before the first entry. A lenient one goes on after a subtree that is damaged, and keeps why in `lost`.
    pub(super) fn new(io: &'a dyn BlockIo, root: u64, lenient: bool) -> Self {
        Self { io, stack: Vec::new(), root: Some(root), lenient, lost: Vec::new(), value: PhantomData }
    }

    fn push(&mut self, at: u64, keys: RangeInclusive<u64>, memory: Option<Box<Block>>) -> Result<(), Error> {
        let pushed = read(self.io, at, memory.unwrap_or_else(Block::zeroed)).and_then(|block| {
            check_place::<V>(Node::read(&block, at)?, at, &keys, self.stack.len() + 1)?;
            Ok(block)
        });
        match pushed {
            Ok(block) => self.stack.push(Frame { at, block, next: 0, keys }),
            Err(error) if self.lenient => self.lost.push(error),
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// The next entry.
    pub(super) fn next(&mut self) -> Result<Option<(u64, V)>, Error> {
        if let Some(root) = self.root.take() {
            self.push(root, 0..=u64::MAX, None)?;
        }
        let mut spare = None;
        while let Some(frame) = self.stack.last_mut() {
            let node = Node::checked(&frame.block);
            let i = frame.next;
            if i == node.len() {
                spare = self.stack.pop().map(|frame| frame.block);
                continue;
            }
            frame.next += 1;
            if node.is_leaf() {
                return Ok(Some((node.key(i), V::decode(node.value(i)))));
            }
            let (child, keys) = (node.child(i), child_keys(node, i, &frame.keys));
            if child == frame.at {
                let error = Error::damage(child, Kind::Node, "a child", child, "another block than itself");
                if !self.lenient {
                    return Err(error);
                }
                self.lost.push(error);
                continue;
            }
            self.push(child, keys, spare.take())?;
        }
        Ok(None)
    }
}
