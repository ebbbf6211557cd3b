//! Chunks: their size, and where the areas lie among them.

use super::layout::EXCEPTION_BYTES;
use super::{Error, ErrorKind};
use udm_base::{Sector, Sectors};

/// Sectors of a chunk when a table says 0 (`DM_CHUNK_SIZE_DEFAULT_SECTORS`, `drivers/md/dm-snap-persistent.c`, 6.12).
const DEFAULT_SECTORS: u32 = 32;
/// The largest power of two whose bytes fit the kernel's `int` (`dm_exception_store_set_chunk_size`): 1 GiB.
const MOST_SECTORS: u64 = 1 << 21;
/// An area is written in multiples of this at least, so that a page cache beneath need not read before it writes.
const PAGE: u64 = 4096;
/// An area is read in pieces of this many bytes at most, so that a chunk of 1 GiB takes no buffer of 1 GiB.
const MOST_READ: u64 = 1 << 20;

/// The size of a chunk: a power of two of sectors, from 1 to 2²¹ (1 GiB).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct ChunkSize {
    shift: u32,
}

impl ChunkSize {
    /// What a table that says 0 gets: 32 sectors, or a block of the COW device when that is larger. `logical_block` is
    /// in bytes.
    pub fn default_for(logical_block: u32) -> Self {
        let sectors = DEFAULT_SECTORS.max(logical_block.next_power_of_two() >> udm_base::SECTOR_SHIFT);
        Self { shift: sectors.ilog2() }
    }

    /// A chunk of `sectors`.
    ///
    /// # Errors
    /// In the kernel's words (`drivers/md/dm-exception-store.c`, 6.12), when it is no power of two or too large.
    /// Whether it is a multiple of the devices' blocks, the caller sees.
    pub fn new(sectors: Sectors) -> Result<Self, &'static str> {
        match sectors.get() {
            n if !n.is_power_of_two() => Err("Chunk size is not a power of 2"),
            n if n > MOST_SECTORS => Err("Chunk size is too high"),
            n => Ok(Self { shift: n.ilog2() }),
        }
    }

    /// Its length.
    #[inline]
    pub const fn sectors(self) -> Sectors {
        Sectors::new(1 << self.shift)
    }

    /// The chunk that `sector` is in.
    #[inline]
    pub const fn of(self, sector: Sector) -> u64 {
        sector.get() >> self.shift
    }

    /// How far into its chunk `sector` is.
    #[inline]
    pub const fn within(self, sector: Sector) -> Sectors {
        Sectors::new(sector.get() & ((1 << self.shift) - 1))
    }

    /// Where `chunk` begins. The caller has checked it against a device.
    #[inline]
    pub const fn start(self, chunk: u64) -> Sector {
        Sector::new(chunk << self.shift)
    }

    /// How many chunks a device of `size` has; the last may be cut short.
    #[inline]
    pub const fn covering(self, size: Sectors) -> u64 {
        size.get().div_ceil(1 << self.shift)
    }
}

/// A chunk size on a COW device of some size: where everything is.
///
/// ```text
/// chunk  0       1       2 … N+1         N+2     N+3 … 2N+2          N = bytes of a chunk / 16
///        header  area 0  data of area 0  area 1  data of area 1 …
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Geometry {
    chunk: ChunkSize,
    device: Sectors,
    block: Sectors,
}

/// A part of the device to be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Piece {
    /// Where it begins.
    pub sector: Sector,
    /// How long it is.
    pub sectors: Sectors,
}

impl Geometry {
    /// A COW device of `device` sectors, written in blocks of `logical_block` bytes.
    ///
    /// # Errors
    /// When the header and the first area do not fit on it.
    pub fn new(chunk: ChunkSize, device: Sectors, logical_block: u32) -> Result<Self, Error> {
        let block = Sectors::covering(PAGE.max(logical_block.into()).next_power_of_two()).min(chunk.sectors());
        let geometry = Self { chunk, device, block };
        if geometry.chunks() < 2 {
            let what = format!(
                "the COW device has {device} sectors, and the header and the first area alone take two chunks of {}: \
                 give it a larger device or smaller chunks",
                chunk.sectors()
            );
            return Err(Error::new(ErrorKind::Truncated, geometry.chunks(), "the device's size", what));
        }
        Ok(geometry)
    }

    /// The same on a device that has grown to `device` sectors. One that has shrunk stays as it was known: what lies
    /// past its end fails when it is written.
    pub(super) fn grow(&mut self, device: Sectors) {
        self.device = self.device.max(device);
    }

    /// The chunk size.
    #[inline]
    pub const fn chunk(&self) -> ChunkSize {
        self.chunk
    }

    /// The COW device's size.
    #[inline]
    pub const fn device(&self) -> Sectors {
        self.device
    }

    /// Whole chunks on the COW device.
    #[inline]
    pub const fn chunks(&self) -> u64 {
        self.device.get() >> self.chunk.shift
    }

    /// Entries in an area.
    #[inline]
    pub const fn per_area(&self) -> u64 {
        self.chunk.sectors().bytes() / EXCEPTION_BYTES as u64
    }

    /// The chunk that holds `area`; `None` when it is not on the device.
    #[inline]
    pub fn area(&self, area: u64) -> Option<u64> {
        let chunk = area.checked_mul(self.per_area() + 1)?.checked_add(1)?;
        (chunk < self.chunks()).then_some(chunk)
    }

    /// Whether `chunk` holds the header or an area.
    #[inline]
    pub const fn is_metadata(&self, chunk: u64) -> bool {
        chunk == 0 || chunk % (self.per_area() + 1) == 1
    }

    /// Metadata is written in this unit, so that nobody beneath has to read first: a page, or a block of the device
    /// when that is larger, but at most a chunk.
    pub(super) const fn block(&self) -> Sectors {
        self.block
    }

    /// What to read next of the chunk `chunk`, `done` bytes of which are read.
    pub(super) fn piece(&self, chunk: u64, done: u64) -> Option<Piece> {
        let left = self.chunk.sectors().bytes().checked_sub(done).filter(|left| *left > 0)?;
        let sector = self.chunk.start(chunk) + Sectors::in_bytes(done);
        Some(Piece { sector, sectors: Sectors::in_bytes(left.min(MOST_READ)) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn geometry(chunk: u64, device: u64) -> Result<Geometry, Error> {
        Geometry::new(ChunkSize::new(Sectors::new(chunk)).unwrap(), Sectors::new(device), 512)
    }

    #[test]
    fn sizes() {
        for (sectors, expect) in [
            (1, Ok(1)),
            (16, Ok(16)),
            (1 << 21, Ok(1 << 21)),
            (0, Err("Chunk size is not a power of 2")),
            (24, Err("Chunk size is not a power of 2")),
            (1 << 22, Err("Chunk size is too high")),
            (u64::MAX, Err("Chunk size is not a power of 2")),
        ] {
            assert_eq!(ChunkSize::new(Sectors::new(sectors)).map(|c| c.sectors().get()), expect, "{sectors}");
        }
        for (block, sectors) in [(512, 32), (4096, 32), (65536, 128)] {
            assert_eq!(ChunkSize::default_for(block).sectors().get(), sectors);
        }
    }

    #[test]
    fn areas() {
        // A chunk of one sector holds 32 entries, so areas are 33 chunks apart.
        let g = geometry(1, 100).unwrap();
        assert_eq!((g.per_area(), g.chunks()), (32, 100));
        assert_eq!([0, 1, 2, 3].map(|a| g.area(a)), [Some(1), Some(34), Some(67), None]);
        assert_eq!(g.area(u64::MAX), None);
        let metadata: Vec<u64> = (0..100).filter(|c| g.is_metadata(*c)).collect();
        assert_eq!(metadata, [0, 1, 34, 67]);
        // 8 KiB: 512 entries. A part of a chunk at the end counts for nothing.
        let g = geometry(16, 16 * 600 + 15).unwrap();
        assert_eq!((g.per_area(), g.chunks(), g.area(1), g.area(2)), (512, 600, Some(514), None));
    }

    #[test]
    fn too_small() {
        assert!(geometry(16, 32).is_ok());
        let error = geometry(16, 31).unwrap_err();
        assert_eq!((error.kind, error.chunk), (ErrorKind::Truncated, 1));
        assert!(error.to_string().contains("31 sectors"), "{error}");
    }

    #[test]
    fn large_chunks_are_read_in_pieces() {
        let g = geometry(1 << 21, 1 << 24).unwrap();
        let mut done = 0;
        let mut reads = 0;
        while let Some(piece) = g.piece(1, done) {
            assert_eq!(piece.sector, Sector::new((1 << 21) + done / 512));
            done += piece.sectors.bytes();
            reads += 1;
        }
        assert_eq!((done, reads), (1 << 30, 1024));
    }
}
