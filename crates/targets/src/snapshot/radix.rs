//! Words by number: read without locks, and there only where they have been asked for.

use std::sync::OnceLock;
use std::sync::atomic::AtomicU64;

/// Words of a leaf, and nodes of a node.
pub(super) const WIDTH: u64 = 1024;
const BITS: u32 = WIDTH.ilog2();

/// A tree of words that are zero at first. Takes 8 bytes for each word of those thousands of which one was made; nodes
/// are never freed before the tree. It is as deep as the numbers that are expected, and has all others too.
pub(super) struct Radix {
    depth: u32,
    root: Node,
    /// A deeper one, for numbers past what this one can hold; made with the first of them.
    beyond: OnceLock<Box<Radix>>,
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
    /// Quickest for numbers below `count`.
    pub(super) fn new(count: u64) -> Self {
        let mut depth = 0;
        while (count.max(1) - 1).checked_shr(BITS * (depth + 1)).unwrap_or(0) != 0 {
            depth += 1;
        }
        Self::of_depth(depth)
    }

    fn of_depth(depth: u32) -> Self {
        Self { depth, root: Node::new(depth), beyond: OnceLock::new() }
    }

    /// A word, if it has been made.
    #[inline]
    pub(super) fn get(&self, number: u64) -> Option<&AtomicU64> {
        self.find(number, false)
    }

    /// A word, made if need be. Allocates then.
    pub(super) fn get_or_make(&self, number: u64) -> &AtomicU64 {
        self.find(number, true).expect("a node that is made has all its words")
    }

    /// Calls `func` with all words that have been made.
    pub(super) fn for_each(&self, mut func: impl FnMut(&AtomicU64)) {
        let mut tree = Some(self);
        while let Some(one) = tree {
            one.root.for_each(&mut func);
            tree = one.beyond.get().map(|beyond| &**beyond);
        }
    }

    #[inline]
    fn find(&self, number: u64, make: bool) -> Option<&AtomicU64> {
        if number.checked_shr(BITS * (self.depth + 1)).unwrap_or(0) != 0 {
            return self.find_beyond(number, make);
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
    #[cold]
    fn find_beyond(&self, number: u64, make: bool) -> Option<&AtomicU64> {
        let deeper = || Box::new(Self::of_depth(self.depth + 1));
        let beyond = if make { self.beyond.get_or_init(deeper) } else { self.beyond.get()? };
        beyond.find(number, make)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering::Relaxed;

    #[test]
    fn numbers_past_what_was_expected_are_kept_too() {
        let numbers = [0, 1, 1023, 1024, 5000, (1 << 20) - 1, 1 << 20, 1 << 40, (1 << 61) + 5, u64::MAX];
        for count in [0, 1, 1024, 1025, 1 << 20, (1 << 20) + 1, u64::MAX] {
            let tree = Radix::new(count);
            for (i, number) in numbers.iter().enumerate() {
                let made = |n: &u64| tree.get(*n).map(|word| word.load(Relaxed)).filter(|value| *value != 0);
                assert_eq!(made(number), None, "{number} of {count}");
                tree.get_or_make(*number).store(*number ^ 7, Relaxed);
                assert!(numbers[..=i].iter().all(|n| made(n) == Some(n ^ 7)), "{number} of {count}");
            }
            let mut seen = 0;
            tree.for_each(|word| seen += u64::from(word.load(Relaxed) != 0));
            assert_eq!(seen, numbers.len() as u64);
        }
    }
}
