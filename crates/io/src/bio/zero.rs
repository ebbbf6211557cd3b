//! Whether memory is all zero: what a thin volume asks of a write before it gives it a block.
//!
//! Data that is not zero mostly shows it early, so that a few words are looked at before all is read: the first, the
//! one in the middle and the last of each segment. What is left is read once, by the widest instructions that the CPU
//! has.

mod kernels;

use super::Op;
use crate::Bio;
use kernels::Kernel;
use std::sync::OnceLock;

/// The best kernel for this CPU; looked up once.
#[inline]
fn kernel() -> Kernel {
    static CHOSEN: OnceLock<Kernel> = OnceLock::new();
    *CHOSEN.get_or_init(|| kernels::available().next().expect("the portable one is always there").1)
}

/// The name of the way in which this CPU compares: `avx512`, `avx2`, `neon` or `portable`.
pub fn zero_kernel() -> &'static str {
    kernels::available().next().expect("the portable one is always there").0
}

/// Whether all bytes are zero; true for none. The first, middle and last words are looked at first. Costs a few ns
/// where these show it, else a read of all.
#[inline]
pub fn is_zero(bytes: &[u8]) -> bool {
    // SAFETY: a slice is readable.
    unsafe { !shows(bytes.as_ptr(), bytes.len()) && rest_is_zero(bytes.as_ptr(), bytes.len()) }
}

/// # Safety
/// The bytes are readable.
#[inline]
unsafe fn rest_is_zero(at: *const u8, len: usize) -> bool {
    // SAFETY: the caller's promise; the kernel was chosen for this CPU.
    unsafe { kernel()(at, len) }
}

/// Whether the first, middle or last word shows that not all is zero.
///
/// # Safety
/// The bytes are readable.
#[inline]
unsafe fn shows(at: *const u8, len: usize) -> bool {
    const WORD: usize = size_of::<u64>();
    if len < WORD {
        return false;
    }
    // SAFETY: within the bytes, which are at least one word.
    let word = |offset: usize| unsafe { at.add(offset).cast::<u64>().read_unaligned() };
    word(0) != 0 || word((len - WORD) / 2) != 0 || word(len - WORD) != 0
}

impl Bio {
    /// Whether it is a write of nothing but zeroes. False for whatever has no payload that is written, also for
    /// [`Op::WriteZeroes`]: what asks for zeroes has no memory to look at. Segments may be of any length and alignment.
    ///
    /// Costs a few ns when the first, middle or last word of a segment is not zero, else a read of the memory. Never
    /// blocks.
    #[inline]
    pub fn is_zero(&self) -> bool {
        if self.op() != Op::Write {
            return false;
        }
        // SAFETY: the contract of Segment::new: readable until the completion of a write.
        !self.segments().any(|seg| unsafe { shows(seg.as_ptr(), seg.len()) })
            // SAFETY: as above.
            && self.segments().all(|seg| unsafe { rest_is_zero(seg.as_ptr(), seg.len()) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every kernel that this CPU has, on every length and alignment near its steps: zeroes are found, and each byte
    /// that is not; what lies before and behind is not looked at.
    #[test]
    fn kernels_agree() {
        let lens = (0..200).chain([255, 256, 257, 511, 512, 513, 1023, 1024, 1025, 1087, 4095, 4096, 4097]);
        let mut memory = vec![0xff_u8; 4096 + 300];
        for len in lens {
            for offset in [0, 1, 3, 8, 31, 33, 63, 64] {
                let range = offset..offset + len;
                memory.fill(0xff);
                memory[range.clone()].fill(0);
                let places = (0..len).filter(|at| len < 140 || at % 61 == 0 || *at < 70 || at + 70 > len);
                for (name, kernel) in kernels::available() {
                    let check = |memory: &[u8]| {
                        let part = &memory[range.clone()];
                        // SAFETY: the slice is readable; the kernel is one that this CPU has.
                        unsafe { kernel(part.as_ptr(), part.len()) }
                    };
                    assert!(check(&memory), "{name}: {len} zeroes at {offset}");
                    assert!(is_zero(&memory[range.clone()]));
                    for at in places.clone() {
                        memory[offset + at] = 0x80;
                        assert!(!check(&memory), "{name}: byte {at} of {len} at {offset}");
                        assert!(!is_zero(&memory[range.clone()]));
                        memory[offset + at] = 0;
                    }
                }
            }
        }
    }

    /// Over several pages, where what comes next is fetched ahead.
    #[test]
    fn kernels_agree_on_pages() {
        let mut memory = vec![0; 40_000];
        for (name, kernel) in kernels::available() {
            for at in [0, 31, 4095, 4096, 8191, 12_345, 32_767, 32_768, 39_000, 39_998] {
                for offset in [0, 1, 17] {
                    let part = &mut memory[offset..];
                    // SAFETY: the slice is readable; the kernel is one that this CPU has.
                    let check = |part: &[u8]| unsafe { kernel(part.as_ptr(), part.len()) };
                    assert!(check(part), "{name}");
                    let at = at.min(part.len() - 1);
                    part[at] = 1;
                    assert!(!check(part), "{name}: {at} at {offset}");
                    part[at] = 0;
                }
            }
        }
    }

    #[test]
    fn the_best_has_a_name() {
        println!("{}", zero_kernel());
        assert!(["avx512", "avx2", "neon", "portable"].contains(&zero_kernel()));
        assert_eq!(kernels::available().last().unwrap().0, "portable");
    }
}
