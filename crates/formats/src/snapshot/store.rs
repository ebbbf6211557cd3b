//! A store as it is now: which chunk is free, which entry comes next, and what to write when exceptions become true.
//!
//! The rules are those of `drivers/md/dm-snap-persistent.c`, 6.12. Two things are done otherwise, and neither can be
//! seen on a device that is at rest:
//! - Of an area only the blocks that change are written, not the whole chunk: the rest is known to be there.
//! - Several areas can be filled at once. Those after the first are written before it, when nobody can come to them
//!   yet.
//!
//! And one can: the entry that would fill the last area of the device is never given away. The kernel gives it, cannot
//! zero an area after it, and loses the snapshot.

use super::layout::EXCEPTION_BYTES;
use super::{AreaReader, AreaWrite, Batch, Content, Error, ErrorKind, Exception, Geometry, Header};
use std::collections::VecDeque;
use std::fmt;
use udm_base::{AlignedBuf, Sector, Sectors};

/// The COW device has no room for another exception.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the COW device is full")]
pub struct Full;

/// What a status shows, as `<allocated>/<total> <metadata>`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Usage {
    /// Everything up to the next free chunk.
    pub allocated: Sectors,
    /// The COW device.
    pub total: Sectors,
    /// The header and the areas.
    pub metadata: Sectors,
}

impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{} {}", self.allocated, self.total, self.metadata)
    }
}

/// A valid store. It is a model: it knows what is on the device, and says what has to be written there.
#[derive(Debug)]
pub struct Store {
    geometry: Geometry,
    next_free: u64,
    /// The area that is not full.
    area: u64,
    /// Its entries.
    entries: Vec<Exception>,
    /// Chunks given away whose exceptions are not true yet, in order.
    pending: VecDeque<u64>,
    /// What follows the entries in their area is known to be zeroes.
    tail_is_zero: bool,
    merging: bool,
    batches: u64,
    /// A batch is being written.
    out: bool,
    /// A batch could not be written: nobody knows what is on the device.
    poisoned: bool,
}

/// What to do next to merge.
#[derive(Debug)]
pub enum Merge<'a> {
    /// Nothing: there are no exceptions any more.
    Done,
    /// Read this area, and give it to [`Store::merge_loaded`].
    Load(AreaReader),
    /// Copy these to the origin, in any order; flush it; then call [`Store::merge_commit`].
    Window(&'a [Exception]),
}

impl Store {
    /// A new store, and how to make it. Until the batch is written the device is what it was.
    pub fn format(geometry: Geometry) -> (Self, Batch) {
        let chunk = geometry.chunk();
        let mut store = Self::loaded(geometry, 0, Vec::new(), 0);
        store.tail_is_zero = true;
        let area = AreaWrite::zeroes(chunk.start(1), chunk.sectors());
        let (header, rest) = header_writes(&geometry, true);
        // The kernel writes the header first. A crash between the two would leave a store with a wild first area.
        let batch = store.batch([area].into_iter().chain(rest).collect(), header);
        (store, batch)
    }

    /// After `area`'s `entries` have been read, and the highest chunk of any.
    pub(super) fn loaded(geometry: Geometry, area: u64, entries: Vec<Exception>, highest: u64) -> Self {
        let mut store = Self {
            geometry,
            next_free: highest.max(1) + 1,
            area,
            entries,
            pending: VecDeque::new(),
            tail_is_zero: false,
            merging: false,
            batches: 0,
            out: false,
            poisoned: false,
        };
        store.skip_metadata();
        store
    }

    /// Where everything is.
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// What a status shows.
    pub fn usage(&self) -> Usage {
        let length = |chunks| self.geometry.chunk().start(chunks) - Sector::ZERO;
        Usage { allocated: length(self.next_free), total: self.geometry.device(), metadata: length(self.area + 2) }
    }

    /// The COW device has `device` sectors now: what has been added is room for more exceptions.
    pub fn grow(&mut self, device: Sectors) {
        self.geometry.grow(device);
    }

    /// How many exceptions are true, and not merged away.
    pub fn committed(&self) -> u64 {
        self.area * self.geometry.per_area() + self.entries.len() as u64
    }

    /// How many chunks are given away and their exceptions not true yet.
    pub fn pending(&self) -> usize {
        self.pending.len()
    }

    /// Whether a batch could not be written. Then the snapshot is to be made invalid.
    pub fn is_poisoned(&self) -> bool {
        self.poisoned
    }

    /// Gives away the next free chunk. What is allocated is to be committed, in the same order.
    ///
    /// # Errors
    /// When there is none.
    ///
    /// # Panics
    /// When the store is being merged.
    pub fn allocate(&mut self) -> Result<u64, Full> {
        assert!(!self.merging, "a store that is merged gets no exceptions");
        let chunk = self.next_free;
        let number = self.committed() + self.pending.len() as u64 + 1;
        let fills_an_area = number.is_multiple_of(self.geometry.per_area());
        let has_next = || self.geometry.area(number / self.geometry.per_area()).is_some();
        if chunk >= self.geometry.chunks() || (fills_an_area && !has_next()) {
            return Err(Full);
        }
        self.next_free += 1;
        self.skip_metadata();
        self.pending.push_back(chunk);
        Ok(chunk)
    }

    /// How long the area is that lies between the chunk that was given away last and the next, if one does. Nothing of
    /// it is in use before exceptions up to that chunk are committed, which writes it: zeroes may go there until then,
    /// with the chunk's data, so that a disk does not wait until it has turned past.
    pub fn area_behind(&self) -> Option<Sectors> {
        let chunk = self.next_free - 1;
        let in_use = self.geometry.area(self.area)?;
        let is_area = self.geometry.is_metadata(chunk) && chunk > in_use && chunk < self.geometry.chunks();
        is_area.then(|| self.geometry.chunk().sectors())
    }

    /// Makes exceptions true: those that were allocated first, in that order. Their data need only be durable before
    /// the batch's `last` write. Until [`finish`](Self::finish), none of them may be told to anybody.
    ///
    /// Cost: 16 bytes an exception, rounded up to blocks of an area.
    ///
    /// # Panics
    /// When a batch is being written, the store is poisoned, or the order is another.
    pub fn commit(&mut self, exceptions: &[Exception]) -> Batch {
        assert!(!exceptions.is_empty(), "something to commit");
        let per_area = self.geometry.per_area() as usize;
        let (first_area, before) = (self.area, self.entries.len());
        let mut first = Vec::new();
        let mut last = None;
        if !std::mem::replace(&mut self.tail_is_zero, true) {
            // Stale entries after the end, as a torn write or merge leaves them, would be looked at once the end has
            // moved on to them; and before `last` is there as a whole, if it is torn too.
            first.extend(self.clean());
        }
        let mut rest = exceptions;
        while !rest.is_empty() {
            let from = self.entries.len();
            let (now, later) = rest.split_at(rest.len().min(per_area - from));
            for exception in now {
                let allocated = self.pending.pop_front();
                assert_eq!(allocated, Some(exception.new), "exceptions commit in the order of their allocation");
                self.entries.push(*exception);
            }
            rest = later;
            if self.area == first_area {
                last = Some(self.blocks(before..self.entries.len()));
            } else {
                first.extend(self.whole_area());
            }
            if self.entries.len() == per_area {
                self.area += 1;
                self.entries.clear();
                // With entries it is written whole in the next round.
                if rest.is_empty() {
                    first.extend(self.whole_area());
                }
            }
        }
        self.batch(first, last.expect("there was an exception"))
    }

    /// A batch was written, or could not be.
    ///
    /// # Panics
    /// When it is another batch than the last.
    pub fn finish(&mut self, batch: &Batch, written: bool) {
        assert!(self.out && batch.number == self.batches, "the batch that is out");
        self.out = false;
        self.poisoned |= !written;
        if self.merging && written {
            // As `persistent_commit_merge` (`drivers/md/dm-snap-persistent.c`, 6.12): the status, which alone looks at
            // it during a merge, must not say that all is merged before that is on the device.
            let area = self.geometry.area(self.area).expect("it was read");
            self.next_free = area + self.entries.len() as u64 + 1;
        }
    }

    /// Makes the snapshot invalid, for ever. Nothing can be committed any more.
    ///
    /// # Panics
    /// When a batch is being written.
    pub fn invalidate(&mut self) -> Batch {
        assert!(!self.out, "one batch at a time");
        self.poisoned = true;
        self.batches += 1;
        self.out = true;
        let (header, first) = header_writes(&self.geometry, false);
        Batch { first, last: header, number: self.batches }
    }

    /// What to merge next: at most `most` of the latest exceptions, oldest first. They are of one area.
    ///
    /// # Errors
    /// When the area to read is not on the device.
    ///
    /// # Panics
    /// When there are chunks whose exceptions are not true yet, or a batch is being written.
    pub fn merge(&mut self, most: usize) -> Result<Merge<'_>, Error> {
        assert!(self.pending.is_empty() && !self.out, "a store at rest");
        self.merging = true;
        if self.entries.is_empty() {
            return match self.area.checked_sub(1) {
                None => Ok(Merge::Done),
                Some(before) => Ok(Merge::Load(AreaReader::new(self.geometry, before)?)),
            };
        }
        Ok(Merge::Window(&self.entries[self.entries.len().saturating_sub(most.max(1))..]))
    }

    /// Takes the area that [`merge`](Self::merge) asked for.
    ///
    /// # Errors
    /// When it is not full any more, as it was when the store was loaded.
    pub fn merge_loaded(&mut self, area: AreaReader) -> Result<(), Error> {
        assert!(self.entries.is_empty() && area.area() + 1 == self.area && area.want().is_none(), "the area asked for");
        if !area.is_full() {
            let chunk = self.geometry.area(area.area()).unwrap_or(0);
            let field = format!("entry {} of area {}, new_chunk", area.entries.len(), area.area());
            return Err(Error::new(ErrorKind::Corrupt, chunk, field, "found 0, and the area had been full"));
        }
        self.area = area.area();
        self.entries = area.entries;
        Ok(())
    }

    /// Takes the latest `merged` exceptions away. The origin must have them durably.
    ///
    /// # Panics
    /// When there are not as many in the area, or a batch is being written.
    pub fn merge_commit(&mut self, merged: usize) -> Batch {
        let was = self.entries.len();
        assert!(self.merging && merged > 0 && merged <= was, "exceptions of the window");
        self.entries.truncate(was - merged);
        let last = self.blocks(was - merged..was);
        self.batch(Vec::new(), last)
    }

    /// It is merged no further, and gets exceptions again. `highest` is the highest chunk that one of those it has lies
    /// in, 0 for none.
    ///
    /// The kernel gives chunks away from the last merged one on, which others may have if some before were given away
    /// in vain.
    ///
    /// # Panics
    /// When a batch is being written, or one could not be.
    pub fn stop_merging(&mut self, highest: u64) {
        assert!(!self.out && !self.poisoned, "a store at rest");
        if std::mem::take(&mut self.merging) {
            self.next_free = highest.max(1) + 1;
            self.skip_metadata();
            self.tail_is_zero = false;
        }
    }

    fn batch(&mut self, first: Vec<AreaWrite>, last: AreaWrite) -> Batch {
        assert!(!self.out, "one batch at a time");
        assert!(!self.poisoned, "nothing follows a write that failed");
        self.out = true;
        self.batches += 1;
        Batch { first, last, number: self.batches }
    }

    fn skip_metadata(&mut self) {
        if self.geometry.is_metadata(self.next_free) {
            self.next_free += 1;
        }
    }

    fn area_start(&self) -> Sector {
        let chunk = self.geometry.area(self.area).expect("chunks are given away while their area is on the device");
        self.geometry.chunk().start(chunk)
    }

    /// The blocks of the area that hold the entries of `range`, as they are to be.
    fn blocks(&self, range: std::ops::Range<usize>) -> AreaWrite {
        let block = self.geometry.block().as_len();
        let from = range.start * EXCEPTION_BYTES / block * block;
        let to = (range.end * EXCEPTION_BYTES).next_multiple_of(block);
        let mut bytes = AlignedBuf::zeroed(to - from);
        for (slot, entry) in bytes.chunks_exact_mut(EXCEPTION_BYTES).zip(&self.entries[from / EXCEPTION_BYTES..]) {
            entry.encode(slot);
        }
        AreaWrite::bytes(self.area_start() + Sectors::in_bytes(from as u64), bytes)
    }

    /// The whole area: its entries, and then zeroes.
    fn whole_area(&self) -> Vec<AreaWrite> {
        let entries = (!self.entries.is_empty()).then(|| self.blocks(0..self.entries.len()));
        entries.into_iter().chain(self.tail()).collect()
    }

    /// The area from the block that the next entry goes to, with nothing after the last entry.
    fn clean(&self) -> Vec<AreaWrite> {
        let from =
            self.entries.len() * EXCEPTION_BYTES / self.geometry.block().as_len() * self.geometry.block().as_len();
        let block = from / EXCEPTION_BYTES..self.entries.len();
        let block = (!block.is_empty()).then(|| self.blocks(block));
        block.into_iter().chain(self.tail()).collect()
    }

    /// Zeroes from the block after the last entry to the area's end.
    fn tail(&self) -> Option<AreaWrite> {
        let used = (self.entries.len() * EXCEPTION_BYTES).next_multiple_of(self.geometry.block().as_len());
        let rest = self.geometry.chunk().sectors() - Sectors::in_bytes(used as u64);
        let at = self.area_start() + Sectors::in_bytes(used as u64);
        (!rest.is_zero()).then(|| AreaWrite::zeroes(at, rest))
    }
}

/// The block of the header, and what follows it in chunk 0.
fn header_writes(geometry: &Geometry, valid: bool) -> (AreaWrite, Vec<AreaWrite>) {
    let header = Header { valid, chunk: geometry.chunk() }.encode();
    let mut bytes = AlignedBuf::zeroed(geometry.block().as_len());
    bytes[..header.len()].copy_from_slice(&header);
    let write = AreaWrite { sector: Sector::ZERO, sectors: geometry.block(), content: Content::Bytes(bytes) };
    let rest = geometry.chunk().sectors() - write.sectors;
    let zeroes = AreaWrite::zeroes(Sector::ZERO + write.sectors, rest);
    (write, if rest.is_zero() { Vec::new() } else { vec![zeroes] })
}
