//! Copies that go past the caches: for memory so large that what is written will not be read again soon.
//!
//! A plain store first fetches the line it is about to overwrite, and pushes another out to make room. Stores that
//! stream do neither, and so move half as many bytes: of memory larger than the caches, random writes of 4 KiB and
//! more are 1.3 to 2 times as fast as with `memcpy` (`BENCHMARKS.md`). The C library streams from some megabytes on
//! only, since it cannot know where it writes to.

use std::ptr;

/// From this many bytes on a copy streams: a shorter one is over before the fence after it is.
pub(crate) const SHORTEST: usize = 4096;
/// What is streamed at a time: a line of the caches.
const LINE: usize = 64;

/// Copies `len` bytes, past the caches where that pays.
///
/// # Safety
/// `from` can be read and `to` written for `len` bytes, and the two do not overlap.
#[inline]
pub(crate) unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
    if cfg!(target_arch = "x86_64") && len >= SHORTEST && len.is_multiple_of(LINE) && (to as usize).is_multiple_of(LINE)
    {
        // SAFETY: the caller's promise, and whole lines.
        unsafe { lines(from, to, len) }
    } else {
        // SAFETY: the caller's promise.
        unsafe { ptr::copy_nonoverlapping(from, to, len) }
    }
}

/// Streams whole lines. What was streamed is seen by others before anything that is stored after.
///
/// # Safety
/// As [`copy`]; `to` and `len` are multiples of a line.
#[cfg(target_arch = "x86_64")]
#[inline(never)]
unsafe fn lines(from: *const u8, to: *mut u8, len: usize) {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_sfence, _mm_stream_si128};
    const WIDTH: usize = size_of::<__m128i>();
    for line in (0..len).step_by(LINE) {
        // SAFETY: within both ranges; `to` is aligned to more than a word of this width. Every x86-64 has SSE2.
        unsafe {
            let word = |n: usize| _mm_loadu_si128(from.add(line + n * WIDTH).cast());
            let words = [word(0), word(1), word(2), word(3)];
            for (n, word) in words.into_iter().enumerate() {
                _mm_stream_si128(to.add(line + n * WIDTH).cast(), word);
            }
        }
    }
    // SAFETY: SSE is there. Streaming stores are ordered by nothing less.
    unsafe { _mm_sfence() }
}

#[cfg(not(target_arch = "x86_64"))]
unsafe fn lines(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: the caller's promise.
    unsafe { ptr::copy_nonoverlapping(from, to, len) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_as_memcpy_does() {
        let from: Vec<u8> = (0..20_000u32).map(|n| (n * 7 + n / 256) as u8).collect();
        for len in [0, 1, 64, 512, 4032, 4095, 4096, 4097, 4160, 12_288] {
            for (skip, at) in [(0, 0), (0, 64), (0, 8), (3, 0), (8, 512), (1, 1)] {
                let mut to = vec![0xaa; 20_000];
                let begin = to.as_ptr().align_offset(LINE) + at;
                // SAFETY: both have as many bytes from there on.
                unsafe { copy(from[skip..].as_ptr(), to[begin..].as_mut_ptr(), len) };
                assert_eq!(to[begin..][..len], from[skip..][..len], "{len} bytes from {skip} to {at}");
                let around = to[..begin].iter().chain(&to[begin + len..]).all(|byte| *byte == 0xaa);
                assert!(around, "{len} bytes from {skip} to {at}: wrote beside");
            }
        }
    }
}
