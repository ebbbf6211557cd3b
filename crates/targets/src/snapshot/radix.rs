//! Words by number: read without locks, and there only where they have been asked for.

use std::sync::OnceLock;
use std::sync::atomic::AtomicU64;

/// Words of a leaf, and nodes of a node.
pub(super) const WIDTH: u64 = 1024;
const BITS: u32 = WIDTH.ilog2();

/// A tree of words that are zero at first. Takes 8 bytes for each word of those thousands of which one was made; nodes are
/// never freed before the tree.
pub(super) struct Radix {
    depth: u32,
    root: Node,
}

enum Node {
    Inner(Box<[OnceLock<Node>]>),
    Leaf(Box<[AtomicU64]>),
}

impl Node {
    fn new(depth: u32) -> Self {
        if depth == 0 {
            Self::Leaf((0..WIDTH).map(|_| AtomicU64::new(0)).collect())
        } else {
            Self::Inner((0..WIDTH).map(|_| OnceLock::new()).collect())
        }
    }

    fn for_each(&self, func: &mut impl FnMut(&AtomicU64)) {
        match self {
            Self::Leaf(words) => words.iter().for_each(func),
            Self::Inner(nodes) => nodes.iter().filter_map(OnceLock::get).for_each(|node| node.for_each(func)),
        }
    }
}

impl Radix {
    /// For numbers below `count`.
    pub(super) fn new(count: u64) -> Self {
        let mut depth = 0;
        while (count.max(1) - 1).checked_shr(BITS * (depth + 1)).unwrap_or(0) != 0 {
            depth += 1;
        }
        Self { depth, root: Node::new(depth) }
    }

    /// A word, if it has been made. None is past the end.
    #[inline]
    pub(super) fn get(&self, number: u64) -> Option<&AtomicU64> {
        self.find(number, false)
    }

    /// A word, made if need be. Allocates then. None is past the end.
    pub(super) fn get_or_make(&self, number: u64) -> Option<&AtomicU64> {
        self.find(number, true)
    }

    /// Calls `func` with all words that have been made.
    pub(super) fn for_each(&self, mut func: impl FnMut(&AtomicU64)) {
        self.root.for_each(&mut func);
    }

    #[inline]
    fn find(&self, number: u64, make: bool) -> Option<&AtomicU64> {
        if number.checked_shr(BITS * (self.depth + 1)).unwrap_or(0) != 0 {
            return None;
        }
        let (mut node, mut depth) = (&self.root, self.depth);
        loop {
            let index = (number >> (BITS * depth) & (WIDTH - 1)) as usize;
            match node {
                Node::Leaf(words) => return words.get(index),
                Node::Inner(nodes) => {
                    depth -= 1;
                    let next = nodes.get(index)?;
                    node = if make { next.get_or_init(|| Node::new(depth)) } else { next.get()? };
                }
            }
        }
    }
}
