//! Memory aligned for direct I/O.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

/// Owned, zeroed memory whose address is a multiple of its alignment.
///
/// Direct I/O needs buffers aligned to the device's logical block size; a page (4096) serves all.
pub struct AlignedBuf {
    ptr: NonNull<u8>,
    len: usize,
    /// What was allocated.
    whole: (NonNull<u8>, Layout),
}

/// From this length on memory comes from the system as zero pages, which it fills in when they are touched: the
/// allocator knows of that only without an alignment, which is made within.
const LAZY: usize = 256 << 10;

impl AlignedBuf {
    /// `len` zero bytes on a page boundary. `len` of 0 gives one byte of memory and no length.
    ///
    /// # Panics
    /// When `len` exceeds half the address space. Callers bound it before.
    pub fn zeroed(len: usize) -> Self {
        Self::with_align(len, 4096)
    }

    /// `len` zero bytes at a multiple of `align`, a power of two.
    ///
    /// # Panics
    /// When `align` is no power of two, or `len` exceeds half the address space.
    pub fn with_align(len: usize, align: usize) -> Self {
        let fits = "a power of two, and a length below isize::MAX";
        let aligned = Layout::from_size_align(len.max(1), align).expect(fits);
        let lazy = len.checked_add(align).filter(|_| len >= LAZY);
        let layout = lazy.map_or(aligned, |whole| Layout::from_size_align(whole, 1).expect(fits));
        // SAFETY: the layout's size is at least 1.
        let memory = unsafe { alloc_zeroed(layout) };
        let Some(memory) = NonNull::new(memory) else { handle_alloc_error(layout) };
        let skip = if lazy.is_some() { memory.align_offset(align) } else { 0 };
        // SAFETY: a lazy layout has `align` bytes more than `len`, and less than that is skipped.
        let ptr = unsafe { memory.add(skip) };
        Self { ptr, len, whole: (memory, layout) }
    }

    /// The address of the first byte. It stays the same for the buffer's life.
    pub fn as_ptr(&self) -> *mut u8 {
        self.ptr.as_ptr()
    }
}

impl Drop for AlignedBuf {
    fn drop(&mut self) {
        let (memory, layout) = self.whole;
        // SAFETY: it came from alloc_zeroed with this layout.
        unsafe { dealloc(memory.as_ptr(), layout) }
    }
}

impl Deref for AlignedBuf {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: `ptr` is valid for the length and initialised since alloc_zeroed.
        unsafe { std::slice::from_raw_parts(self.ptr.as_ptr(), self.len) }
    }
}

impl DerefMut for AlignedBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as for Deref, and the borrow is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.as_ptr(), self.len) }
    }
}

// SAFETY: the buffer owns its memory, as a Box<[u8]> would.
unsafe impl Send for AlignedBuf {}
// SAFETY: shared access only reads.
unsafe impl Sync for AlignedBuf {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn aligned_and_zero() {
        for (len, align) in [(0, 512), (1, 512), (4096, 4096), (100_000, 1 << 21), (1 << 20, 4096), (LAZY, 512)] {
            let mut buf = AlignedBuf::with_align(len, align);
            assert_eq!(buf.len(), len);
            assert_eq!(buf.as_ptr() as usize % align, 0);
            assert!(buf.iter().all(|b| *b == 0));
            buf.fill(7);
        }
    }
}
