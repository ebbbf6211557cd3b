//! The floor: a buffer and plain copies, made of the same memory as the `ram` target.

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use std::io;
use std::ptr::{self, NonNull};

/// An anonymous mapping, in huge pages where they can be had (as `udm_io::Memory`), that several jobs copy from and to.
pub(crate) struct Floor {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping is owned; its bytes are only touched by copies through raw pointers.
unsafe impl Send for Floor {}
// SAFETY: as above. Copies that overlap mix their bytes, as on a disk; nothing else depends on them.
unsafe impl Sync for Floor {}

impl Floor {
    /// `len` bytes, zero until written.
    pub(crate) fn new(len: u64) -> io::Result<Self> {
        let len = usize::try_from(len).map_err(|_| io::Error::from(io::ErrorKind::OutOfMemory))?;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new anonymous mapping at an address of the kernel's choice.
        let base = unsafe { mmap_anonymous(ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, flags) }?;
        // SAFETY: the range was just mapped. Without huge pages it works as well, only slower.
        let _ = unsafe { madvise(base, len, Advice::LinuxHugepage) };
        Ok(Self { base: NonNull::new(base.cast()).expect("mmap gives no null"), len })
    }

    #[inline(always)]
    fn at(&self, byte: u64, len: usize) -> *mut u8 {
        let end = byte.checked_add(len as u64).filter(|end| *end <= self.len as u64);
        assert!(end.is_some(), "the generator stays within its span");
        // SAFETY: within the mapping, checked above.
        unsafe { self.base.as_ptr().add(byte as usize) }
    }

    /// Copies out.
    #[inline(always)]
    pub(crate) fn read(&self, byte: u64, to: &mut [u8]) {
        // SAFETY: both are valid for the length; `to` is borrowed and cannot lie in a private mapping of ours.
        unsafe { ptr::copy_nonoverlapping(self.at(byte, to.len()), to.as_mut_ptr(), to.len()) }
    }

    /// Copies in.
    #[inline(always)]
    pub(crate) fn write(&self, byte: u64, from: &[u8]) {
        // SAFETY: as `read`.
        unsafe { ptr::copy_nonoverlapping(from.as_ptr(), self.at(byte, from.len()), from.len()) }
    }

    /// Bytes.
    pub(crate) fn len(&self) -> u64 {
        self.len as u64
    }
}

impl Drop for Floor {
    fn drop(&mut self) {
        // SAFETY: the mapping is owned, and nothing refers to it any more.
        let unmapped = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
        debug_assert!(unmapped.is_ok(), "a mapping of our own can be unmapped");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let floor = Floor::new(10_000).unwrap();
        floor.write(5_000, &[7; 512]);
        let mut back = [1; 1024];
        floor.read(4_744, &mut back);
        assert!(back[..256].iter().all(|b| *b == 0) && back[256..768].iter().all(|b| *b == 7));
        assert!(back[768..].iter().all(|b| *b == 0));
    }

    #[test]
    #[should_panic(expected = "within its span")]
    fn past_the_end() {
        Floor::new(4096).unwrap().read(4095, &mut [0; 2]);
    }
}
