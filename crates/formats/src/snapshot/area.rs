//! Reads one area.

use super::layout::EXCEPTION_BYTES;
use super::{Error, ErrorKind, Exception, Geometry, Piece};
use udm_base::Sector;

/// Reads one area, piece by piece: ask with [`want`](Self::want), read, and [`feed`](Self::feed), until it wants
/// nothing.
#[derive(Debug)]
pub struct AreaReader {
    geometry: Geometry,
    area: u64,
    chunk: u64,
    done: u64,
    pub(super) entries: Vec<Exception>,
    ended: bool,
}

impl AreaReader {
    /// # Errors
    /// When the area is not on the device.
    pub(super) fn new(geometry: Geometry, area: u64) -> Result<Self, Error> {
        let Some(chunk) = geometry.area(area) else {
            let what = format!(
                "area {} is full and the device ends before area {area}, after {} chunks: it was cut short",
                area.saturating_sub(1),
                geometry.chunks()
            );
            return Err(Error::new(ErrorKind::Truncated, geometry.chunks(), "the device's size", what));
        };
        Ok(Self { geometry, area, chunk, done: 0, entries: Vec::new(), ended: false })
    }

    /// The area's number.
    pub fn area(&self) -> u64 {
        self.area
    }

    /// Whether every entry is in use: then another area follows.
    pub fn is_full(&self) -> bool {
        self.entries.len() as u64 == self.geometry.per_area()
    }

    /// What to read next; `None` when the area is read, or has ended.
    pub fn want(&self) -> Option<Piece> {
        if self.ended { None } else { self.geometry.piece(self.chunk, self.done) }
    }

    /// Takes what was read: the piece that [`want`](Self::want) gave, whole.
    ///
    /// # Errors
    /// When an entry points to where no data can be.
    ///
    /// # Panics
    /// When it is not as long as the piece.
    pub fn feed(&mut self, bytes: &[u8]) -> Result<(), Error> {
        let piece = self.want().expect("a piece that was asked for");
        assert_eq!(bytes.len() as u64, piece.sectors.bytes(), "the whole piece");
        let first = self.done / EXCEPTION_BYTES as u64;
        for (index, exception) in (first..).zip(Exception::entries(bytes)) {
            if exception.new == 0 {
                self.ended = true;
                break;
            }
            self.check(index, exception)?;
            self.entries.push(exception);
        }
        self.done += bytes.len() as u64;
        Ok(())
    }

    fn check(&self, index: u64, exception: Exception) -> Result<(), Error> {
        let (new, chunks) = (exception.new, self.geometry.chunks());
        let corrupt = |field: &str, what| {
            let field = format!("entry {index} of area {}, {field}", self.area);
            Err(Error::new(ErrorKind::Corrupt, self.chunk, field, what))
        };
        if new >= chunks {
            return corrupt("new_chunk", format!("found {new}, and the device ends after {chunks} chunks"));
        }
        if self.geometry.is_metadata(new) {
            return corrupt("new_chunk", format!("found {new}, where an area lies, expected a chunk of data"));
        }
        // A device's bytes are counted in 64 bits, so a chunk of it lies below sector 2^55.
        if exception.old >= self.geometry.chunk().of(Sector::new(1 << 55)) {
            return corrupt("old_chunk", format!("found {}, past the end of any device", exception.old));
        }
        Ok(())
    }
}
