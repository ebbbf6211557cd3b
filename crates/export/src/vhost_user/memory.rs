//! The memory of a guest: the regions that a front end shares, and where in them an address lies.
//!
//! # Invariants
//! - Addresses of a guest are numbers until a region has been found that holds all of what they stand for. What is
//!   found lies in a mapping that lives as long as the [`GuestMemory`] that was asked; nobody keeps an address for
//!   longer.
//! - The guest changes its memory whenever it likes. Nothing here lends it as a slice, and what is read is read once:
//!   who has checked a number uses the number that was checked.

use super::wire::RegionSpec;
use rustix::fd::OwnedFd;
use rustix::fs::fstatfs;
use std::sync::Arc;
use udm_files::ForeignMemory;

/// Regions at most, as many as KVM has slots for memory (`KVM_USER_MEM_SLOTS`).
pub(super) const MAX_SLOTS: usize = 509;

/// A region and the mapping of it.
pub(super) struct Region {
    spec: RegionSpec,
    /// Kept for a server after this one.
    file: OwnedFd,
    memory: ForeignMemory,
}

impl Region {
    /// Maps a region of a file that the front end has sent.
    pub(super) fn map(spec: RegionSpec, file: OwnedFd) -> Result<Arc<Self>, String> {
        let fits = |start: u64| start.checked_add(spec.size).is_some();
        if !fits(spec.guest) || !fits(spec.user) {
            return Err(format!("{spec:x?} ends beyond 2^64"));
        }
        check_file(&file)?;
        let memory = ForeignMemory::map(&file, spec.offset, spec.size)
            .map_err(|e| format!("the memory at {:#x} of the guest cannot be mapped: {e}", spec.guest))?;
        Ok(Arc::new(Self { spec, file, memory }))
    }
}

/// File systems whose pages come from elsewhere (`include/uapi/linux/magic.h`, 6.12): FUSE, NFS, SMB and its older
/// kind, 9p, Ceph, AFS.
const REMOTE: [u32; 7] = [0x6573_5546, 0x6969, 0xfe53_4d42, 0xff53_4d42, 0x0102_1997, 0x00c3_6400, 0x5346_414f];

/// Refuses memory that is a file of a server's, which may be the front end's own. Whoever touches such a page waits for
/// that server as long as it likes: a worker in the middle of a copy, and with it all that waits for the worker.
pub(super) fn check_file(file: &OwnedFd) -> Result<(), String> {
    let kind = fstatfs(file).map_err(|e| format!("the file of memory that is shared: {e}"))?.f_type;
    // The field's width differs between architectures; the numbers have 32 bits.
    match REMOTE.contains(&(kind as u32)) {
        true => {
            Err("memory that is shared lies on a file system of a server: expected a memfd, or a local file".into())
        }
        false => Ok(()),
    }
}

/// What a look-up needs of a region.
#[derive(Clone, Copy)]
struct Span {
    guest: u64,
    size: u64,
    user: u64,
    host: *mut u8,
}

/// A piece of memory by its address in this process.
#[derive(Clone, Copy, Debug)]
pub(super) struct Piece {
    pub(super) ptr: *mut u8,
    pub(super) len: usize,
}

/// All regions at one time; never changed, only replaced.
#[derive(Default)]
pub(super) struct GuestMemory {
    regions: Vec<Arc<Region>>,
    /// In the order of the guest's addresses.
    spans: Box<[Span]>,
}

// SAFETY: the addresses are of mappings that `regions` keeps, which are Send and Sync.
unsafe impl Send for GuestMemory {}
// SAFETY: as above.
unsafe impl Sync for GuestMemory {}

impl GuestMemory {
    /// These regions, which must not overlap.
    pub(super) fn new(mut regions: Vec<Arc<Region>>) -> Result<Self, String> {
        if regions.len() > MAX_SLOTS {
            return Err(format!("{} regions of memory; expected at most {MAX_SLOTS}", regions.len()));
        }
        let overlaps = |a: (u64, u64), b: (u64, u64)| a.0 < b.0 + b.1 && b.0 < a.0 + a.1;
        for (i, a) in regions.iter().enumerate() {
            for b in &regions[..i] {
                let (a, b) = (a.spec, b.spec);
                if overlaps((a.guest, a.size), (b.guest, b.size)) || overlaps((a.user, a.size), (b.user, b.size)) {
                    return Err(format!("the regions of memory {a:x?} and {b:x?} overlap"));
                }
            }
        }
        regions.sort_by_key(|region| region.spec.guest);
        let span = |r: &Arc<Region>| Span {
            guest: r.spec.guest,
            size: r.spec.size,
            user: r.spec.user,
            host: r.memory.as_ptr(),
        };
        let spans = regions.iter().map(span).collect();
        Ok(Self { regions, spans })
    }

    /// Its regions and their files.
    pub(super) fn regions(&self) -> impl Iterator<Item = (RegionSpec, &OwnedFd)> {
        self.regions.iter().map(|region| (region.spec, &region.file))
    }

    /// These and one more.
    pub(super) fn with(&self, region: Arc<Region>) -> Result<Self, String> {
        let mut regions = self.regions.clone();
        regions.push(region);
        Self::new(regions)
    }

    /// These less one, which is named by its addresses and size.
    pub(super) fn without(&self, spec: &RegionSpec) -> Result<Self, String> {
        let is = |r: &&Arc<Region>| (r.spec.guest, r.spec.user, r.spec.size) == (spec.guest, spec.user, spec.size);
        let regions: Vec<_> = self.regions.iter().filter(|r| !is(r)).cloned().collect();
        match regions.len() < self.regions.len() {
            true => Self::new(regions),
            false => Err(format!("there is no region of memory {spec:x?}")),
        }
    }

    /// Whether the front end has taken memory away that is in use.
    #[inline]
    pub(super) fn is_torn(&self) -> bool {
        self.regions.iter().any(|region| region.memory.is_torn())
    }

    /// The pieces of `len` bytes at an address of the guest: one, unless regions meet there. False when part of it lies
    /// in none.
    #[inline(always)]
    pub(super) fn pieces(&self, guest: u64, len: u32, mut each: impl FnMut(Piece)) -> bool {
        let (mut at, mut left) = (guest, u64::from(len));
        loop {
            let Some(span) = self.spans.iter().find(|span| at.wrapping_sub(span.guest) < span.size) else {
                return false;
            };
            let into = at - span.guest;
            let here = left.min(span.size - into);
            each(Piece { ptr: span.host.wrapping_add(into as usize), len: here as usize });
            left -= here;
            if left == 0 {
                return true;
            }
            // Regions end before 2^64.
            at += here;
        }
    }

    /// Where `len` bytes at an address of the guest lie, all in one region.
    pub(super) fn at_guest(&self, guest: u64, len: u64) -> Option<*mut u8> {
        self.at(len, guest, |span| span.guest)
    }

    /// Where `len` bytes at an address of the front end lie, all in one region.
    pub(super) fn at_user(&self, user: u64, len: u64) -> Option<*mut u8> {
        self.at(len, user, |span| span.user)
    }

    fn at(&self, len: u64, address: u64, start: impl Fn(&Span) -> u64) -> Option<*mut u8> {
        self.spans.iter().find_map(|span| {
            let into = address.wrapping_sub(start(span));
            let fits = into < span.size && len <= span.size - into;
            fits.then(|| span.host.wrapping_add(into as usize))
        })
    }
}

/// Reads bytes of the guest's from the front of pieces. False when there are not as many.
///
/// # Safety
/// The pieces were found in a memory that is still there.
#[inline]
pub(super) unsafe fn read_front(pieces: &[Piece], into: &mut [u8]) -> bool {
    let mut done = 0;
    for piece in pieces {
        let n = piece.len.min(into.len() - done);
        // SAFETY: the caller's promise; `into` has room for n more bytes.
        unsafe { std::ptr::copy_nonoverlapping(piece.ptr, into[done..].as_mut_ptr(), n) };
        done += n;
        if done == into.len() {
            return true;
        }
    }
    done == into.len()
}

/// Writes bytes to the front of pieces, as far as these go. Returns how many.
///
/// # Safety
/// As [`read_front`].
pub(super) unsafe fn write_front(pieces: &[Piece], bytes: &[u8]) -> usize {
    let mut done = 0;
    for piece in pieces {
        let n = piece.len.min(bytes.len() - done);
        // SAFETY: as in `read_front`.
        unsafe { std::ptr::copy_nonoverlapping(bytes[done..].as_ptr(), piece.ptr, n) };
        done += n;
    }
    done
}

/// Cuts `n` bytes off the front of pieces that have as many.
pub(super) fn skip_front(pieces: &mut Vec<Piece>, mut n: usize) {
    let mut whole = 0;
    for piece in pieces.iter_mut() {
        if piece.len > n {
            *piece = Piece { ptr: piece.ptr.wrapping_add(n), len: piece.len - n };
            break;
        }
        n -= piece.len;
        whole += 1;
    }
    pieces.drain(..whole);
}

/// Takes the last byte off pieces. `None` when there is none.
pub(super) fn take_last(pieces: &mut Vec<Piece>) -> Option<*mut u8> {
    let last = pieces.last_mut()?;
    last.len -= 1;
    let at = last.ptr.wrapping_add(last.len);
    if last.len == 0 {
        pieces.pop();
    }
    Some(at)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

    fn region(guest: u64, size: u64, user: u64) -> Arc<Region> {
        let fd = memfd_create("udm-test", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&fd, size).unwrap();
        Region::map(RegionSpec { guest, size, user, offset: 0 }, fd).unwrap()
    }

    #[test]
    fn addresses() {
        let memory = GuestMemory::new(vec![region(0x10000, 0x4000, 0), region(0, 0x10000, 0x100_0000)]).unwrap();
        for (at, len, expect) in [
            (0, 1, Some(vec![1])),
            (0x3ff0, 0x20, Some(vec![0x20])),
            (0xfff0, 0x20, Some(vec![0x10, 0x10])),
            (0x13fff, 1, Some(vec![1])),
            (0x13fff, 2, None),
            (0x14000, 1, None),
            (u64::MAX, 1, None),
            (u64::MAX, u32::MAX, None),
            (0, u32::MAX, None),
        ] {
            let mut lens = Vec::new();
            let found = memory.pieces(at, len, |piece| lens.push(piece.len));
            assert_eq!(found.then_some(lens), expect, "{at:#x}+{len:#x}");
        }
        assert!(memory.at_guest(0xfff0, 0x10).is_some() && memory.at_guest(0xfff0, 0x11).is_none());
        assert!(memory.at_user(0x100_0000, 0x10000).is_some() && memory.at_user(0x3fff, 2).is_none());
        assert!(memory.at_user(0x100_0000, u64::MAX).is_none());
    }

    #[test]
    fn overlaps_are_refused() {
        let memory = GuestMemory::new(vec![region(0, 0x10000, 0)]).unwrap();
        for (guest, user, ok) in [(0x10000, 0x10000, true), (0xffff, 0x10000, false), (0x10000, 0xffff, false)] {
            assert_eq!(memory.with(region(guest, 0x1000, user)).is_ok(), ok, "{guest:#x} {user:#x}");
        }
        let spec = RegionSpec { guest: 0, size: 0x10000, user: 0, offset: 0 };
        assert!(memory.without(&spec).is_ok());
        assert!(memory.without(&RegionSpec { size: 1, ..spec }).is_err());
    }

    #[test]
    fn fronts() {
        let mut bytes: Vec<u8> = (0..10).collect();
        let at = bytes.as_mut_ptr();
        let all = || [(0, 3), (3, 4), (7, 3)].map(|(o, len)| Piece { ptr: at.wrapping_add(o), len }).to_vec();
        for skip in 0..=10 {
            let mut pieces = all();
            skip_front(&mut pieces, skip);
            let mut read = vec![0; 10 - skip];
            // SAFETY: pieces of the vector, as below.
            assert!(unsafe { read_front(&pieces, &mut read) });
            assert!(read.iter().copied().eq(skip as u8..10), "{skip}");
            // SAFETY: as above.
            assert!(!unsafe { read_front(&pieces, &mut vec![0; 11 - skip]) });
        }
        let mut pieces = all();
        // SAFETY: the last byte of the vector.
        assert_eq!(unsafe { *take_last(&mut pieces).unwrap() }, 9);
        // SAFETY: as above.
        assert_eq!(unsafe { write_front(&pieces, &[9; 20]) }, 9);
    }
}
