//! Memory as a device: sparse until written, huge pages where they can be had.

use crate::{Bio, BlockDevice, Cx, DeviceId, Extent, ExtentKind, Lent, Limits, Op, OpFlags, Status};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use std::any::Any;
use std::io;
use std::ptr::{self, NonNull};
use udm_base::{SECTOR_SIZE, Sector, Sectors};

/// A range of zeroed memory that takes pages only when written, and gives them back when discarded.
///
/// Bios of several channels may meet in it; as on a disk, what a read finds that overlaps a write in flight is not
/// defined byte by byte, and nothing else is harmed.
pub struct Memory {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping is owned; its bytes are only touched by copies through raw pointers, as a device's are.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    /// `size` of zeroes. Takes address space only; fails when there is none left.
    pub fn new(size: Sectors) -> io::Result<Self> {
        let len = size.checked_bytes().and_then(|b| usize::try_from(b).ok()).filter(|len| *len > 0);
        let len = len.ok_or_else(|| {
            io::Error::new(io::ErrorKind::InvalidInput, format!("a memory device of {size} sectors cannot be"))
        })?;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new anonymous mapping at an address of the kernel's choice.
        let base = unsafe { mmap_anonymous(ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, flags) }?;
        // SAFETY: the range was just mapped. Without huge pages it works as well, only slower.
        let _ = unsafe { madvise(base, len, Advice::LinuxHugepage) };
        Ok(Self { base: NonNull::new(base.cast()).expect("mmap gives no null"), len })
    }

    /// The size.
    pub fn sectors(&self) -> Sectors {
        Sectors::in_bytes(self.len as u64)
    }

    /// The first byte's address.
    pub(crate) fn as_ptr(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// Does the bio's operation at its sector, and says how it went. The caller ends it.
    #[inline]
    pub fn serve(&self, bio: &Bio) -> Status {
        self.serve_at(bio, bio.sector())
    }

    /// Does the bio's operation at another address than its own.
    #[inline]
    pub fn serve_at(&self, bio: &Bio, sector: Sector) -> Status {
        let (start, len) = (sector.get(), bio.sectors().get());
        if start.checked_add(len).is_none_or(|end| end > (self.len / SECTOR_SIZE) as u64) {
            return Status::Invalid;
        }
        // SAFETY: the range lies within the mapping, checked above.
        let at = unsafe { self.base.as_ptr().add(sector.bytes() as usize) };
        match bio.op() {
            Op::Read => copy(at, bio, |mem, seg, n| {
                // SAFETY: both ranges are valid for n bytes (the mapping, and the contract of Segment::new).
                unsafe { ptr::copy_nonoverlapping(mem, seg, n) }
            }),
            Op::Write => {
                prefetch_for_write(at, bio.sectors().as_len());
                copy(at, bio, |mem, seg, n| {
                    // SAFETY: as above.
                    unsafe { ptr::copy_nonoverlapping(seg, mem, n) }
                });
            }
            Op::Flush => {}
            Op::WriteZeroes if bio.flags().contains(OpFlags::NO_UNMAP) => {
                self.zero(sector.bytes() as usize, bio.sectors().as_len());
            }
            Op::Discard | Op::WriteZeroes => self.clear(sector.bytes() as usize, bio.sectors().as_len()),
        }
        Status::Ok
    }

    /// Zeroes a range: whole pages are given back to the system. (With NO_UNMAP they are kept, and written to.)
    fn clear(&self, start: usize, len: usize) {
        // The system's pages, of up to 64 KiB: it would give back all of one that is named in part.
        let page = rustix::param::page_size();
        let (first, last) = (start.next_multiple_of(page), (start + len) / page * page);
        if first >= last {
            return self.zero(start, len);
        }
        self.zero(start, first - start);
        self.zero(last, start + len - last);
        // SAFETY: whole pages of the mapping. DONTNEED makes private anonymous pages zero again.
        let given = unsafe { madvise(self.base.as_ptr().add(first).cast(), last - first, Advice::LinuxDontNeed) };
        if given.is_err() {
            self.zero(first, last - first);
        }
    }

    fn zero(&self, start: usize, len: usize) {
        // SAFETY: the caller keeps to the mapping.
        unsafe { ptr::write_bytes(self.base.as_ptr().add(start), 0, len) }
    }
}

/// Asks for the lines of a write's target all at once: stores alone are fetched few at a time, since each waits in the
/// store buffer until its line has come. (For loads it was slower than leaving the CPU to itself.)
#[inline(always)]
fn prefetch_for_write(at: *const u8, len: usize) {
    #[cfg(target_arch = "x86_64")]
    for offset in (0..len.min(4096)).step_by(64) {
        use std::arch::x86_64::{_MM_HINT_ET0, _mm_prefetch};
        // SAFETY: a prefetch touches nothing; where the CPU has no PREFETCHW it is no operation.
        unsafe { _mm_prefetch::<_MM_HINT_ET0>(at.add(offset).cast()) }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (at, len);
}

#[inline(always)]
fn copy(mut at: *mut u8, bio: &Bio, mut one: impl FnMut(*mut u8, *mut u8, usize)) {
    for seg in bio.segments() {
        one(at, seg.as_ptr(), seg.len());
        at = at.wrapping_add(seg.len());
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the mapping is owned, and nothing refers to it any more.
        let unmapped = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
        debug_assert!(unmapped.is_ok(), "a mapping of our own can be unmapped");
    }
}

/// [`Memory`] as a block device of its own, for tests and for `BlockingIo`.
pub struct MemoryDevice(Memory);

impl MemoryDevice {
    /// A device of `size`.
    pub fn new(size: Sectors) -> io::Result<Self> {
        Memory::new(size).map(Self)
    }
}

impl BlockDevice for MemoryDevice {
    fn submit(&self, _: &Cx<'_>, bio: Bio) -> Option<Bio> {
        let status = self.0.serve(&bio);
        bio.end(status);
        None
    }

    fn sectors(&self) -> Sectors {
        self.0.sectors()
    }

    fn limits(&self) -> Limits {
        Limits::default()
    }

    fn id(&self) -> DeviceId {
        DeviceId::Anonymous(ptr::from_ref(self) as usize)
    }

    fn name(&self) -> String {
        format!("memory:{}", self.sectors())
    }

    fn lend<'a>(&'a self, _: &'a Cx<'_>, op: Op, sector: Sector, sectors: Sectors) -> Option<Lent<'a>> {
        self.0.lend(op, sector, sectors)
    }

    fn extents(&self, _: Sector, sectors: Sectors) -> Vec<Extent> {
        vec![Extent { sectors, kind: ExtentKind::Data }]
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
