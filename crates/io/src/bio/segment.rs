//! The memory of a bio: a list of discontiguous pieces, as `struct bio_vec`.

use std::marker::PhantomData;

/// A piece of memory that a device reads from or writes to.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Segment {
    ptr: *mut u8,
    len: usize,
}

impl Segment {
    /// A segment of `len` bytes at `ptr`, of any alignment.
    ///
    /// # Safety
    /// From the submission of a bio that carries it until that bio's completion, the memory must stay
    /// valid for reads (of a write) or writes (of a read), and must not be borrowed in a way that
    /// the device's access would violate.
    #[inline]
    pub const unsafe fn new(ptr: *mut u8, len: usize) -> Self {
        Self { ptr, len }
    }

    /// A segment of nothing.
    pub const EMPTY: Self = Self { ptr: std::ptr::null_mut(), len: 0 };

    /// The first byte's address.
    #[inline]
    pub const fn as_ptr(&self) -> *mut u8 {
        self.ptr
    }

    /// Bytes.
    #[inline]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no bytes.
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }
}

// SAFETY: a segment is an address; who may use it, and when, is the contract of `Segment::new`.
unsafe impl Send for Segment {}
// SAFETY: as above.
unsafe impl Sync for Segment {}

/// The segments of a bio, cut to its length.
#[derive(Clone, Copy)]
pub struct Segments<'a> {
    next: *const Segment,
    skip: usize,
    left: usize,
    _bio: PhantomData<&'a Segment>,
}

impl<'a> Segments<'a> {
    /// The `left` bytes of a list after its first `skip`.
    ///
    /// # Safety
    /// `next` leads a list whose lengths add up to at least `skip + left`, and that lives for `'a`.
    #[inline]
    pub const unsafe fn new(next: *const Segment, skip: usize, left: usize) -> Self {
        Self { next, skip, left, _bio: PhantomData }
    }

    /// Bytes in all that are left.
    #[inline]
    pub const fn bytes(&self) -> usize {
        self.left
    }

    /// The same less its first `n` bytes.
    #[must_use]
    pub fn skip_bytes(mut self, mut n: usize) -> Self {
        while n > 0 {
            match self.peek() {
                Some(seg) if seg.len <= n => {
                    n -= seg.len;
                    self.next();
                }
                Some(_) => {
                    self.skip += n;
                    self.left -= n;
                    break;
                }
                None => break,
            }
        }
        self
    }

    /// The same cut to its first `n` bytes.
    #[inline]
    #[must_use]
    pub const fn take_bytes(mut self, n: usize) -> Self {
        if n < self.left {
            self.left = n;
        }
        self
    }

    /// The list, and the bytes to skip in its first segment.
    #[inline]
    pub(crate) const fn raw(&self) -> (*const Segment, usize) {
        (self.next, self.skip)
    }

    /// The first segment that is left, without taking it.
    #[inline]
    pub fn peek(&self) -> Option<Segment> {
        if self.left == 0 {
            return None;
        }
        // SAFETY: bytes are left, so the list goes on (contract of `new`).
        let seg = unsafe { *self.next };
        // SAFETY: `skip` never exceeds the first segment's length.
        let ptr = unsafe { seg.ptr.add(self.skip) };
        Some(Segment { ptr, len: (seg.len - self.skip).min(self.left) })
    }
}

impl Iterator for Segments<'_> {
    type Item = Segment;

    #[inline]
    fn next(&mut self) -> Option<Segment> {
        loop {
            let seg = self.peek()?;
            self.left -= seg.len;
            self.skip = 0;
            self.next = self.next.wrapping_add(1);
            if !seg.is_empty() {
                return Some(seg);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lens(lens: &[usize], skip: usize, left: usize, then_skip: usize) -> Vec<usize> {
        let mut memory = vec![0u8; lens.iter().sum::<usize>() + 1];
        let mut at = memory.as_mut_ptr();
        let list: Vec<Segment> = lens
            .iter()
            .map(|&len| {
                let seg = Segment { ptr: at, len };
                at = at.wrapping_add(len);
                seg
            })
            .collect();
        // SAFETY: the list holds skip + left bytes in every case below.
        unsafe { Segments::new(list.as_ptr(), skip, left) }.skip_bytes(then_skip).map(|s| s.len()).collect()
    }

    #[test]
    fn cuts_to_length() {
        assert_eq!(lens(&[10], 0, 10, 0), [10]);
        assert_eq!(lens(&[10, 0, 20], 5, 15, 0), [5, 10]);
        assert_eq!(lens(&[10, 20, 30], 0, 60, 10), [20, 30]);
        assert_eq!(lens(&[10, 20, 30], 0, 60, 11), [19, 30]);
        assert_eq!(lens(&[10, 20], 0, 30, 30), [0usize; 0]);
        assert_eq!(lens(&[10, 20], 0, 0, 0), [0usize; 0]);
    }
}
