//! Memory as a device: sparse until written, huge pages where they can be had.

use crate::bio::{Op, OpFlags, Segments, Status};
use crate::stream;
use rustix::fd::OwnedFd;
use rustix::fs::{
    FallocateFlags, MemfdFlags, SealFlags, fallocate, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate, memfd_create,
};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};
use std::io;
use std::ptr::{self, NonNull};
use std::sync::OnceLock;
use udm_base::{SECTOR_SIZE, Sector, Sectors};

/// Bytes that move to a file at a time; a multiple of every page size.
const MOVED: usize = 4 << 20;
/// Memory of this size may still lie in caches; of more than this, what was written long ago does not.
const CACHED: usize = 256 << 20;

/// A range of zeroed memory that takes pages only when written, and gives them back when discarded.
///
/// Bios of several channels may meet in it; as on a disk, what a read finds that overlaps a write in flight is not
/// defined byte by byte, and nothing else is harmed.
///
/// It can move to another process: [`share`](Self::share) there, [`adopt`](Self::adopt) here. From then on it lies in a
/// file of the kernel's memory, which both may map.
pub struct Memory {
    base: NonNull<u8>,
    len: usize,
    /// Writes go past the caches.
    streams: bool,
    /// What is mapped, if it has moved.
    file: OnceLock<OwnedFd>,
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
        let base = NonNull::new(base.cast()).expect("mmap gives no null");
        Ok(Self { base, len, streams: false, file: OnceLock::new() })
    }

    /// The same for a disk whose speed counts: if it is larger than caches are, long writes go past them. That doubles
    /// their speed, and makes what reads them at once fetch them from memory.
    pub fn streaming(size: Sectors) -> io::Result<Self> {
        let mut memory = Self::new(size)?;
        memory.streams = memory.len > CACHED;
        Ok(memory)
    }

    /// What is in it, as a file of memory for another process. The first time it is copied there, and given back here
    /// as that goes on, so that it is never held twice: a gigabyte takes some tenths of a second. Nobody may use the
    /// memory meanwhile, nor afterwards but through the file.
    pub fn share(&self) -> io::Result<OwnedFd> {
        if let Some(file) = self.file.get() {
            return file.try_clone();
        }
        let file = memfd_create("udm-memory", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&file, self.len as u64)?;
        // Whoever has the file may not cut it: to reach beyond its end is a signal, not an error.
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW)?;
        let page = rustix::param::page_size();
        let pagemap = std::fs::File::open("/proc/self/pagemap").ok();
        for at in (0..self.len).step_by(MOVED) {
            let len = MOVED.min(self.len - at);
            // SAFETY: within the mapping, which nobody uses meanwhile.
            let bytes = unsafe { std::slice::from_raw_parts(self.base.as_ptr().add(at), len) };
            let taken = pages_taken(pagemap.as_ref(), bytes.as_ptr() as usize / page, len.div_ceil(page));
            for (number, piece) in bytes.chunks(page).enumerate() {
                if taken.get(number).is_none_or(|taken| *taken) && piece.iter().any(|byte| *byte != 0) {
                    let offset = at + number * page;
                    if let Err(error) = write_whole(&file, piece, offset as u64) {
                        self.fetch_back(&file, at)?;
                        return Err(error);
                    }
                }
            }
            // SAFETY: as above; the mapping begins on a page, and `MOVED` is a multiple of one.
            let _ = unsafe { madvise(self.base.as_ptr().add(at).cast(), len, Advice::LinuxDontNeed) };
        }
        Ok(file)
    }

    /// Takes back what has been moved of the first `len` bytes.
    fn fetch_back(&self, file: &OwnedFd, len: usize) -> io::Result<()> {
        let mut at = 0;
        while at < len {
            // SAFETY: within the mapping, which nobody uses meanwhile.
            let bytes = unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr().add(at), (len - at).min(MOVED)) };
            at += match rustix::io::pread(file, bytes, at as u64) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(n) => n,
                Err(rustix::io::Errno::INTR) => 0,
                Err(errno) => return Err(errno.into()),
            };
        }
        Ok(())
    }

    /// Puts what another process has [shared](Self::share) in the place of what is here. Nobody may use the memory
    /// meanwhile. Fails when the file has another size, or can be cut; then nothing has changed.
    pub fn adopt(&self, file: OwnedFd) -> io::Result<()> {
        let invalid = |text: String| Err(io::Error::new(io::ErrorKind::InvalidData, text));
        let found = fstat(&file)?.st_size;
        if u64::try_from(found) != Ok(self.len as u64) {
            return invalid(format!("expected {} bytes of memory, found {found}", self.len));
        }
        if !fcntl_get_seals(&file)?.contains(SealFlags::SHRINK) {
            return invalid("the file of memory can be cut by others".to_owned());
        }
        if self.file.get().is_some() {
            return invalid("this memory has been moved already".to_owned());
        }
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | MapFlags::FIXED);
        // SAFETY: takes the place of exactly our own mapping, which keeps its address and its length.
        let at = unsafe { mmap(self.base.as_ptr().cast(), self.len, protection, flags, &file, 0) }?;
        debug_assert_eq!(at, self.base.as_ptr().cast());
        // SAFETY: as in `new`.
        let _ = unsafe { madvise(at, self.len, Advice::LinuxHugepage) };
        let _ = self.file.set(file);
        Ok(())
    }

    /// The size.
    pub fn sectors(&self) -> Sectors {
        Sectors::in_bytes(self.len as u64)
    }

    /// The first byte's address.
    pub fn as_ptr(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// Does an operation on a range, with the memory of a bio.
    #[inline]
    pub(crate) fn operate(
        &self,
        (op, flags): (Op, OpFlags),
        (sector, sectors): (Sector, Sectors),
        memory: Segments<'_>,
    ) -> Status {
        let (start, len) = (sector.get(), sectors.get());
        if start.checked_add(len).is_none_or(|end| end > (self.len / SECTOR_SIZE) as u64) {
            return Status::Invalid;
        }
        // SAFETY: the range lies within the mapping, checked above.
        let at = unsafe { self.base.as_ptr().add(sector.bytes() as usize) };
        match op {
            Op::Read => copy(at, memory, |mem, seg, n| {
                // SAFETY: both ranges are valid for n bytes (the mapping, and the contract of Segment::new).
                unsafe { ptr::copy_nonoverlapping(mem, seg, n) }
            }),
            Op::Write if self.streams && sectors.as_len() >= stream::SHORTEST => copy(at, memory, |mem, seg, n| {
                // SAFETY: as above.
                unsafe { stream::copy(seg, mem, n) }
            }),
            Op::Write => {
                prefetch_for_write(at, sectors.as_len());
                copy(at, memory, |mem, seg, n| {
                    // SAFETY: as above.
                    unsafe { ptr::copy_nonoverlapping(seg, mem, n) }
                });
            }
            Op::Flush => {}
            Op::WriteZeroes if flags.contains(OpFlags::NO_UNMAP) => {
                self.zero(sector.bytes() as usize, sectors.as_len());
            }
            Op::Discard | Op::WriteZeroes => self.clear(sector.bytes() as usize, sectors.as_len()),
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
        if let Some(file) = self.file.get() {
            let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            if fallocate(file, hole, first as u64, (last - first) as u64).is_err() {
                self.zero(first, last - first);
            }
            return;
        }
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

/// Which of some pages of this process have memory, here or swapped out (`Documentation/admin-guide/mm/pagemap.rst`,
/// 6.12); empty when that cannot be found out. A disk that is hardly written to is not to be read whole.
fn pages_taken(pagemap: Option<&std::fs::File>, first: usize, count: usize) -> Vec<bool> {
    use std::os::unix::fs::FileExt;
    const PRESENT_OR_SWAPPED: u8 = 0xc0;
    let mut entries = vec![0; count * 8];
    match pagemap.map(|file| file.read_exact_at(&mut entries, first as u64 * 8)) {
        Some(Ok(())) => entries.chunks_exact(8).map(|entry| entry[7] & PRESENT_OR_SWAPPED != 0).collect(),
        _ => Vec::new(),
    }
}

fn write_whole(file: &OwnedFd, mut bytes: &[u8], mut at: u64) -> io::Result<()> {
    while !bytes.is_empty() {
        match rustix::io::pwrite(file, bytes, at) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(n) => {
                bytes = &bytes[n..];
                at += n as u64;
            }
            Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
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
fn copy(mut at: *mut u8, memory: Segments<'_>, mut one: impl FnMut(*mut u8, *mut u8, usize)) {
    for seg in memory {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{BlockingIo, Domain, MemoryDevice, OpFlags};
    use std::sync::Arc;

    #[test]
    fn what_streams_is_there_afterwards() {
        let dev = Arc::new(MemoryDevice(Memory::streaming(Sectors::in_bytes(2 * CACHED as u64)).unwrap()));
        assert!(dev.0.streams);
        let io = BlockingIo::new(&Domain::default(), dev).unwrap();
        let bytes: Vec<u8> = (0..20_480u32).map(|n| (n * 7 + n / 256) as u8).collect();
        for (sector, len) in [(0, 4096), (1_000_000, 20_480), (77, 4608), (500, 512)] {
            io.write(Sector::new(sector), &bytes[..len], OpFlags::NONE).unwrap();
            let mut found = vec![0; len + 1024];
            io.read(Sector::new(sector.max(1) - 1), &mut found).unwrap();
            let found = &found[usize::from(sector > 0) * 512..][..len];
            assert_eq!(found, &bytes[..len], "{len} bytes at sector {sector}");
        }
    }

    #[test]
    fn what_moves_is_there_afterwards() {
        let domain = Domain::default();
        let size = Sectors::in_bytes(20 << 20);
        let [one, two, three] = [(); 3].map(|()| Arc::new(MemoryDevice::new(size).unwrap()));
        let io = BlockingIo::new(&domain, one.clone()).unwrap();
        for (sector, byte) in [(0, 1), (7, 2), (16383, 3), (40959, 4)] {
            io.write(Sector::new(sector), &[byte; 512], OpFlags::NONE).unwrap();
        }
        let check = |dev: &Arc<MemoryDevice>, expect: &[(u64, u8)]| {
            let io = BlockingIo::new(&domain, dev.clone()).unwrap();
            for (sector, byte) in expect {
                let mut found = [9; 512];
                io.read(Sector::new(*sector), &mut found).unwrap();
                assert_eq!(found, [*byte; 512], "sector {sector}");
            }
        };
        let all = [(0, 1), (7, 2), (8, 0), (16383, 3), (20000, 0), (40959, 4)];
        two.0.adopt(one.0.share().unwrap()).unwrap();
        check(&two, &all);
        let file = two.0.share().unwrap();
        assert!(fstat(&file).unwrap().st_blocks < 8 * 8, "what is empty stays so");
        let io = BlockingIo::new(&domain, two.clone()).unwrap();
        io.range(Op::Discard, OpFlags::NONE, Sector::ZERO, Sectors::new(4096)).unwrap();
        io.write(Sector::new(20000), &[5; 512], OpFlags::NONE).unwrap();
        // The same file once more, as when a server gets back what it gave away.
        three.0.adopt(file).unwrap();
        check(&three, &[(0, 0), (7, 0), (16383, 3), (20000, 5), (40959, 4)]);
        for (size, seal, expect) in [(10 << 20, true, "expected 20971520 bytes"), (20 << 20, false, "can be cut")] {
            let file = memfd_create("test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
            ftruncate(&file, size).unwrap();
            if seal {
                fcntl_add_seals(&file, SealFlags::SHRINK).unwrap();
            }
            let error = MemoryDevice::new(Sectors::in_bytes(20 << 20)).unwrap().0.adopt(file).unwrap_err();
            assert!(error.to_string().contains(expect), "{error}");
        }
    }
}
