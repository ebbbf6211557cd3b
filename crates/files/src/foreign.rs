//! Memory that another process shares: a mapping of its file, which that process may cut off at any time.
//!
//! A load or store beyond the end of the file raises SIGBUS, wherever it happens: in a device that copies, in a target
//! that looks for zeroes. The handler (set up with that of `file::guard`) finds the mapping in a list, puts a page of
//! zeroes in the place of what has gone, and marks the mapping as *torn*; the instruction runs again. Who shares the
//! memory looks at the mark before it acknowledges anything, and ends the connection. What the kernel itself copies
//! (io_uring, sockets) fails with EFAULT.
//!
//! # Invariants
//! - The list only grows, and its entries are used again: the handler follows it without a lock. An entry is in use
//!   exactly while its mapping exists.
//! - A torn mapping stays mapped at its address until it is dropped.

use crate::guard;
use rustix::fd::AsFd;
use rustix::fs::{FileType, fstat};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::io;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};

/// A place in the list of mappings.
struct Entry {
    start: AtomicUsize,
    /// 0 while the entry is free or being changed.
    len: AtomicUsize,
    page: AtomicUsize,
    torn: AtomicBool,
    taken: AtomicBool,
    next: AtomicPtr<Entry>,
}

static LIST: AtomicPtr<Entry> = AtomicPtr::new(ptr::null_mut());

/// The entries, newest first.
fn entries() -> impl Iterator<Item = &'static Entry> {
    // SAFETY: entries are leaked: whatever has been in the list stays.
    let follow = |at: *mut Entry| unsafe { at.as_ref() };
    std::iter::successors(follow(LIST.load(Ordering::Acquire)), move |e| follow(e.next.load(Ordering::Acquire)))
}

fn take_entry() -> &'static Entry {
    let free = |e: &&Entry| e.taken.compare_exchange(false, true, Ordering::AcqRel, Ordering::Relaxed).is_ok();
    if let Some(entry) = entries().find(free) {
        return entry;
    }
    let entry: &'static mut Entry = Box::leak(Box::new(Entry {
        start: AtomicUsize::new(0),
        len: AtomicUsize::new(0),
        page: AtomicUsize::new(0),
        torn: AtomicBool::new(false),
        taken: AtomicBool::new(true),
        next: AtomicPtr::new(ptr::null_mut()),
    }));
    let entry: *mut Entry = entry;
    let mut head = LIST.load(Ordering::Acquire);
    loop {
        // SAFETY: leaked above; shared from here on.
        unsafe { &*entry }.next.store(head, Ordering::Relaxed);
        match LIST.compare_exchange(head, entry, Ordering::AcqRel, Ordering::Acquire) {
            // SAFETY: leaked above.
            Ok(_) => return unsafe { &*entry },
            Err(now) => head = now,
        }
    }
}

/// Puts zeroes where a mapping has lost its memory. For the handler of SIGBUS: does what a signal handler may. False
/// when the address lies in no mapping of the list.
fn claim(address: usize) -> bool {
    for entry in entries() {
        let (start, len) = (entry.start.load(Ordering::Acquire), entry.len.load(Ordering::Acquire));
        if address.wrapping_sub(start) >= len {
            continue;
        }
        let page = entry.page.load(Ordering::Relaxed);
        let at = start + (address - start) / page * page;
        entry.torn.store(true, Ordering::Release);
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: replaces a page within a mapping that is ours, and that nothing can be read from any more.
        let mapped = unsafe { libc::mmap(at as *mut libc::c_void, page, prot, flags, -1, 0) };
        return mapped != libc::MAP_FAILED;
    }
    false
}

/// A mapping of memory that another process shares, readable and writable. Unmapped when dropped.
pub struct ForeignMemory {
    base: NonNull<u8>,
    /// Bytes before the range that was asked for, so that the mapping begins on a page.
    lead: usize,
    /// Bytes that were asked for.
    len: usize,
    mapped: usize,
    entry: &'static Entry,
}

// SAFETY: the mapping is owned; its bytes are only touched by copies through raw pointers.
unsafe impl Send for ForeignMemory {}
// SAFETY: as above. Another process writes to it anyway, so that nobody may rely on what it holds.
unsafe impl Sync for ForeignMemory {}

impl ForeignMemory {
    /// Maps `len` bytes of `file` from `offset` on. The file may be closed afterwards. May block briefly.
    ///
    /// # Errors
    /// `InvalidInput` when it is no regular file (a memfd is one), or shorter than the range; else what the system
    /// says.
    pub fn map(file: impl AsFd, offset: u64, len: u64) -> io::Result<Self> {
        let refuse = |text: String| Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        let stat = fstat(&file)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return refuse("expected a memfd or a regular file to map".into());
        }
        let there = u64::try_from(stat.st_size).unwrap_or(0);
        if len == 0 || offset.checked_add(len).is_none_or(|end| end > there) {
            return refuse(format!("{len} bytes at {offset} of a file of {there} bytes: expected a range within it"));
        }
        // Of a file in hugetlbfs the block is the huge page, which a mapping has to begin and end on.
        let huge = rustix::fs::fstatfs(&file).is_ok_and(|fs| fs.f_type == HUGETLBFS_MAGIC);
        // SAFETY: asks only. By libc, since rustix looks where valgrind has nothing to show.
        let small = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096);
        let page = if huge { usize::try_from(stat.st_blksize).unwrap_or(small) } else { small }.max(small);
        let lead = offset % page as u64;
        let bytes = (lead + len).checked_next_multiple_of(page as u64).and_then(|b| usize::try_from(b).ok());
        let Some(mapped) = bytes else { return refuse(format!("{len} bytes are more than can be mapped")) };
        guard::prepare_with(claim)?;
        let entry = take_entry();
        let flags = MapFlags::SHARED | MapFlags::NORESERVE;
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let base = match unsafe { mmap(ptr::null_mut(), mapped, prot, flags, &file, offset - lead) } {
            Ok(base) => base,
            Err(errno) => {
                entry.taken.store(false, Ordering::Release);
                return Err(errno.into());
            }
        };
        entry.torn.store(false, Ordering::Relaxed);
        entry.page.store(page, Ordering::Relaxed);
        entry.start.store(base as usize, Ordering::Release);
        entry.len.store(mapped, Ordering::Release);
        let base = NonNull::new(base.cast()).expect("mmap gives no null");
        Ok(Self { base, lead: lead as usize, len: len as usize, mapped, entry })
    }

    /// The first byte of the range.
    pub fn as_ptr(&self) -> *mut u8 {
        // SAFETY: the lead lies within the mapping.
        unsafe { self.base.as_ptr().add(self.lead) }
    }

    /// Bytes of the range.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the range is empty; it never is.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether somebody met memory that had gone: what was read then was zero, and what was written is lost.
    #[inline]
    pub fn is_torn(&self) -> bool {
        self.entry.torn.load(Ordering::Acquire)
    }
}

/// What statfs(2) says of hugetlbfs (`include/uapi/linux/magic.h`, 6.12).
const HUGETLBFS_MAGIC: i64 = 0x9584_58f6;

impl Drop for ForeignMemory {
    fn drop(&mut self) {
        self.entry.len.store(0, Ordering::Release);
        // SAFETY: the mapping is owned, and nothing refers to it any more.
        let unmapped = unsafe { munmap(self.base.as_ptr().cast(), self.mapped) };
        debug_assert!(unmapped.is_ok(), "a mapping of our own can be unmapped");
        self.entry.taken.store(false, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

    fn memfd(len: u64) -> rustix::fd::OwnedFd {
        let fd = memfd_create("udm-test", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&fd, len).unwrap();
        fd
    }

    #[test]
    fn ranges() {
        let fd = memfd(3 << 20);
        for (offset, len, ok) in [
            (0, 3 << 20, true),
            (100, 5000, true),
            (4096, 1, true),
            (0, 0, false),
            (0, (3 << 20) + 1, false),
            (3 << 20, 1, false),
            (u64::MAX, 2, false),
            (1, u64::MAX, false),
        ] {
            let mapped = ForeignMemory::map(&fd, offset, len);
            assert_eq!(mapped.is_ok(), ok, "{offset}+{len}");
            if let Ok(memory) = mapped {
                rustix::io::pwrite(&fd, &[offset as u8 ^ 0x55], offset).unwrap();
                // SAFETY: the first byte of a mapping.
                assert_eq!(unsafe { memory.as_ptr().read_volatile() }, offset as u8 ^ 0x55);
                assert_eq!(memory.len() as u64, len);
            }
        }
        let (pipe, _other) = rustix::pipe::pipe().unwrap();
        assert!(ForeignMemory::map(&pipe, 0, 1).is_err());
    }

    /// Touching what was cut off gives zeroes and the mark; other mappings have none.
    #[test]
    fn cut_off() {
        let (fd, other) = (memfd(64 << 10), memfd(64 << 10));
        let memory = ForeignMemory::map(&fd, 0, 64 << 10).unwrap();
        let whole = ForeignMemory::map(&other, 0, 64 << 10).unwrap();
        // SAFETY: within the mapping, as are those below.
        let at = |byte: usize| unsafe { memory.as_ptr().add(byte) };
        // SAFETY: as above.
        unsafe { at(40_000).write_volatile(7) };
        ftruncate(&fd, 4096).unwrap();
        // SAFETY: as above.
        assert_eq!(unsafe { at(0).read_volatile() }, 0);
        assert!(!memory.is_torn());
        // SAFETY: as above.
        assert_eq!(unsafe { at(40_000).read_volatile() }, 0);
        assert!(memory.is_torn() && !whole.is_torn());
        // SAFETY: as above.
        unsafe { at(60_000).write_volatile(1) };
        drop(memory);
        let again = ForeignMemory::map(&other, 0, 4096).unwrap();
        assert!(!again.is_torn(), "an entry that is used again is whole");
    }
}
