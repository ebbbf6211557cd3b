//! What a request does to a device: bios, one after another. No I/O.

use udm_base::{Sector, Sectors};
use udm_io::OpFlags;

/// A range of whole sectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Range {
    pub(super) start: Sector,
    pub(super) sectors: Sectors,
}

/// Some bytes of one block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Part {
    /// The block.
    pub(super) block: Range,
    /// The first of its bytes that changes.
    pub(super) skip: usize,
    /// How many change.
    pub(super) len: usize,
    /// Where they come from, in the request's data; `None` for zeroes.
    pub(super) from: Option<usize>,
}

/// One bio.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Into the request's buffer.
    Read(Range),
    /// From the request's data, beginning at this byte.
    Write(Range, usize, OpFlags),
    /// Reads a block of which a part is to change.
    Load(Part),
    /// Writes it.
    Store(Part),
    Discard(Range),
    /// Makes zero what the device says holds data: not a bio, but questions and the steps that follow from them.
    ZeroData(Range),
    /// Finds data, or a hole, from a byte on: no bio either.
    Seek(u64, bool),
    Zero(Range, OpFlags),
    Flush,
}

/// `length` bytes from `offset`, cut at borders of blocks: a part before, whole blocks, a part after.
struct Cut {
    head: Option<(u64, usize, usize)>,
    whole: Option<(u64, u64)>,
    tail: Option<(u64, usize)>,
}

fn cut(offset: u64, length: u64, block: u64) -> Cut {
    let end = offset + length;
    let first = offset / block * block;
    // At most a block: fits.
    if offset != first && end <= first + block {
        return Cut { head: Some((first, (offset - first) as usize, length as usize)), whole: None, tail: None };
    }
    let head = (offset != first).then(|| (first, (offset - first) as usize, (first + block - offset) as usize));
    let (from, to) = (offset.next_multiple_of(block), end / block * block);
    let whole = (from < to).then_some((from, to - from));
    let tail = (to < end).then_some((to, (end - to) as usize));
    Cut { head, whole, tail }
}

fn range(offset: u64, length: u64) -> Range {
    Range { start: Sector::containing(offset), sectors: Sectors::in_bytes(length) }
}

/// The steps of a write of `length` bytes at `offset`, on blocks of `block` bytes, and whether it is of whole blocks.
/// The range lies within the device. The first step comes last, as on a stack.
pub(super) fn write(offset: u64, length: u64, block: u32, flags: OpFlags) -> (Step, Vec<Step>, bool) {
    let block = u64::from(block);
    if (offset | length) & (block - 1) == 0 {
        return (Step::Write(range(offset, length), 0, flags), Vec::new(), true);
    }
    let Cut { head, whole, tail } = cut(offset, length, block);
    let mut steps = Vec::new();
    let mut at = 0;
    if let Some((start, skip, len)) = head {
        steps.push(Step::Load(Part { block: range(start, block), skip, len, from: Some(0) }));
        at = len;
    }
    if let Some((start, len)) = whole {
        steps.push(Step::Write(range(start, len), at, OpFlags::NONE));
        // No longer than the request's data.
        at += len as usize;
    }
    if let Some((start, len)) = tail {
        steps.push(Step::Load(Part { block: range(start, block), skip: 0, len, from: Some(at) }));
    }
    if flags.contains(OpFlags::FUA) {
        steps.push(Step::Flush);
    }
    let (first, rest) = stack(steps);
    (first, rest, false)
}

/// As [`write`], of zeroes. `free`: what can be given back is.
pub(super) fn zero(offset: u64, length: u64, block: u32, free: bool, discards: bool) -> (Step, Vec<Step>, bool) {
    let block = u64::from(block);
    let Cut { head, whole, tail } = cut(offset, length, block);
    let mut steps = Vec::new();
    if let Some((start, skip, len)) = head {
        steps.push(Step::Load(Part { block: range(start, block), skip, len, from: None }));
    }
    if let Some((start, len)) = whole {
        let range = range(start, len);
        if free && discards {
            // A discard may leave what it does not cover as it is, or all; only then is there something to zero.
            steps.extend([Step::Discard(range), Step::ZeroData(range)]);
        } else {
            steps.push(Step::Zero(range, if free { OpFlags::NONE } else { OpFlags::NO_UNMAP }));
        }
    }
    if let Some((start, len)) = tail {
        steps.push(Step::Load(Part { block: range(start, block), skip: 0, len, from: None }));
    }
    let (first, rest) = stack(steps);
    (first, rest, head.is_none() && tail.is_none())
}

/// The first, and the others as a stack.
fn stack(mut steps: Vec<Step>) -> (Step, Vec<Step>) {
    steps.reverse();
    let first = steps.pop().expect("a range that is not empty has a step");
    (first, steps)
}

/// The whole blocks that a read covers: the range, and the bytes before what was asked for.
pub(super) fn covering(offset: u64, length: u64, block: u32) -> (Range, usize) {
    let block = u64::from(block);
    let first = offset / block * block;
    let end = (offset + length).next_multiple_of(block);
    (range(first, end - first), (offset - first) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn apply(memory: &mut [u8], data: &[u8], steps: &[Step]) {
        for step in steps {
            match step {
                Step::Write(range, from, _) => {
                    let (at, len) = (range.start.bytes() as usize, range.sectors.as_len());
                    memory[at..at + len].copy_from_slice(&data[*from..*from + len]);
                }
                Step::Load(part) => {
                    assert!(part.skip + part.len <= part.block.sectors.as_len());
                    let at = part.block.start.bytes() as usize + part.skip;
                    let to = &mut memory[at..at + part.len];
                    match part.from {
                        Some(from) => to.copy_from_slice(&data[from..from + part.len]),
                        None => to.fill(0),
                    }
                }
                Step::Zero(range, _) | Step::ZeroData(range) => {
                    let (at, len) = (range.start.bytes() as usize, range.sectors.as_len());
                    memory[at..at + len].fill(0);
                }
                Step::Discard(_) | Step::Flush => {}
                other => panic!("{other:?}"),
            }
        }
    }

    #[test]
    fn steps_change_what_was_asked_for_and_nothing_else() {
        let data: Vec<u8> = (0..16384).map(|i| (i % 251) as u8 + 1).collect();
        for block in [512u32, 4096] {
            let edges = [0u64, 1, 511, 512, 513, 4095, 4096, 4097, 8192, 12287, 12288];
            for offset in edges {
                for end in edges.into_iter().filter(|end| *end > offset) {
                    let length = end - offset;
                    for (what, (first, rest, whole)) in [
                        write(offset, length, block, OpFlags::NONE),
                        zero(offset, length, block, false, true),
                        zero(offset, length, block, true, true),
                    ]
                    .into_iter()
                    .enumerate()
                    {
                        let steps: Vec<_> = std::iter::once(first).chain(rest.into_iter().rev()).collect();
                        let mut memory = vec![0xee; 16384];
                        apply(&mut memory, &data, &steps);
                        let mut expect = vec![0xee; 16384];
                        let changed = &mut expect[offset as usize..end as usize];
                        if what == 0 {
                            changed.copy_from_slice(&data[..length as usize])
                        } else {
                            changed.fill(0)
                        }
                        assert!(memory == expect, "block {block}: {length} bytes at {offset}: {steps:?}");
                        assert_eq!(whole, (offset | length) % u64::from(block) == 0);
                    }
                }
            }
        }
    }

    #[test]
    fn durable_parts_are_flushed() {
        assert_eq!(write(0, 512, 512, OpFlags::FUA).0, Step::Write(range(0, 512), 0, OpFlags::FUA));
        assert_eq!(write(1, 512, 512, OpFlags::FUA).1.first(), Some(&Step::Flush));
    }

    #[test]
    fn reads_cover_blocks() {
        assert_eq!(covering(0, 4096, 4096), (range(0, 4096), 0));
        assert_eq!(covering(4095, 2, 4096), (range(0, 8192), 4095));
        assert_eq!(covering(513, 1, 512), (range(512, 512), 1));
    }
}
