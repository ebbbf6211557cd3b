//! Reads all areas.

use super::{AreaReader, Error, ErrorKind, Exception, Geometry, Piece, Store};

/// Reads a store from its first area to its first empty entry, as `read_exceptions` of
/// `drivers/md/dm-snap-persistent.c`, 6.12: ask with [`want`](Self::want), read, [`feed`](Self::feed); at the end
/// [`finish`](Self::finish).
///
/// Memory: 16 bytes an exception, of which there are at most as many as chunks on the device.
#[derive(Debug)]
pub struct Reader {
    geometry: Geometry,
    area: AreaReader,
    /// Of the areas before, which are full.
    exceptions: Vec<Exception>,
}

/// A store that was read.
#[derive(Debug)]
pub struct Loaded {
    /// All exceptions, in the order in which they became true.
    pub exceptions: Vec<Exception>,
    /// The store, ready to go on.
    pub store: Store,
}

impl Reader {
    /// Begins at the first area.
    pub fn new(geometry: Geometry) -> Self {
        let area = AreaReader::new(geometry, 0).expect("a geometry has an area");
        Self { geometry, area, exceptions: Vec::new() }
    }

    /// What to read next; `None` when the end has been seen.
    pub fn want(&self) -> Option<Piece> {
        self.area.want()
    }

    /// Takes what was read: the piece that [`want`](Self::want) gave, whole.
    ///
    /// # Errors
    /// When an entry points to where no data can be, and when the device ends before the store does.
    ///
    /// # Panics
    /// When it is not as long as the piece.
    pub fn feed(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.area.feed(bytes)?;
        if self.area.is_full() {
            self.exceptions.append(&mut self.area.entries);
            self.area = AreaReader::new(self.geometry, self.area.area() + 1)?;
        }
        Ok(())
    }

    /// Looks at what was read as a whole.
    ///
    /// # Errors
    /// When a chunk of the origin has two exceptions, or two share a chunk of the COW device.
    ///
    /// # Panics
    /// When it still wants something.
    pub fn finish(mut self) -> Result<Loaded, Error> {
        assert_eq!(self.want(), None, "read to the end");
        let (area, last) = (self.area.area(), std::mem::take(&mut self.area.entries));
        let mut exceptions = std::mem::take(&mut self.exceptions);
        exceptions.extend_from_slice(&last);
        self.distinct(&exceptions, "old_chunk", |e| e.old)?;
        self.distinct(&exceptions, "new_chunk", |e| e.new)?;
        let highest = exceptions.iter().map(|e| e.new).max().unwrap_or(0);
        Ok(Loaded { store: Store::loaded(self.geometry, area, last, highest), exceptions })
    }

    fn distinct(&self, all: &[Exception], field: &str, key: impl Fn(&Exception) -> u64) -> Result<(), Error> {
        let mut order: Vec<(u64, usize)> = all.iter().map(&key).zip(0..).collect();
        order.sort_unstable();
        let Some(pair) = order.windows(2).find(|pair| pair[0].0 == pair[1].0) else { return Ok(()) };
        let place = |at: usize| (at as u64 / self.geometry.per_area(), at as u64 % self.geometry.per_area());
        let ((area, index), (other_area, other)) = (place(pair[1].1), place(pair[0].1));
        let chunk = self.geometry.area(area).expect("it was read");
        let field = format!("entry {index} of area {area}, {field}");
        let what = format!("found {}, which entry {other} of area {other_area} has too", pair[0].0);
        Err(Error::new(ErrorKind::Corrupt, chunk, field, what))
    }
}
