//! A volatile write cache: the writes that no flush has seen, in the order in which they completed, and what reads see
//! of them. No I/O.
//!
//! # Invariants
//! - A write is in the list until all of it is on the device, by a flush or because room was needed.
//! - What a FUA write has overwritten is *dead*: it never reaches the device any more.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use udm_base::power_cut::survivors;
use udm_base::{Rng, SECTOR_SIZE, Sector, Sectors};
use udm_formats::log_writes::{BlockSize, Entry, Flags, Layout, Reader, Superblock};

/// What a write takes beside its data, in bytes, roughly.
const OVERHEAD: u64 = 256;

/// What a write puts where it goes.
#[derive(Clone)]
pub(super) enum Content {
    Data(Arc<[u8]>),
    Zeroes,
    Discard,
}

impl Content {
    /// Of memory that a write takes.
    fn bytes(&self) -> u64 {
        OVERHEAD + if let Self::Data(data) = self { data.len() as u64 } else { 0 }
    }
}

/// A range of sectors, and what it is to hold: that of a write, from so many sectors on.
#[derive(Clone)]
pub(super) struct Piece {
    pub(super) range: Range<u64>,
    number: u64,
    content: Content,
    skip: u64,
}

impl Piece {
    fn part(&self, range: Range<u64>) -> Self {
        let skip = self.skip + (range.start - self.range.start);
        Self { range, skip, ..self.clone() }
    }

    pub(super) fn sector(&self) -> Sector {
        Sector::new(self.range.start)
    }

    pub(super) fn sectors(&self) -> Sectors {
        Sectors::new(self.range.end - self.range.start)
    }

    /// Its data; `None`: zeroes.
    pub(super) fn data(&self) -> Option<&[u8]> {
        let Content::Data(data) = &self.content else { return None };
        Some(&data[Sectors::new(self.skip).as_len()..][..self.sectors().as_len()])
    }

    pub(super) fn is_discard(&self) -> bool {
        matches!(self.content, Content::Discard)
    }
}

/// Pieces that do not overlap, by where they begin.
#[derive(Default)]
struct Pieces(BTreeMap<u64, Piece>);

impl Pieces {
    /// Takes out what lies in a range, of pieces for which that holds; what sticks out stays.
    fn cut_out(&mut self, range: &Range<u64>, which: impl Fn(u64) -> bool) {
        let hit: Vec<u64> = self.over(range).filter(|p| which(p.number)).map(|p| p.range.start).collect();
        for start in hit {
            let Some(piece) = self.0.remove(&start) else { continue };
            let (before, after) = (start..range.start, range.end..piece.range.end);
            for rest in [before, after].into_iter().filter(|rest| !rest.is_empty()) {
                self.0.insert(rest.start, piece.part(rest));
            }
        }
    }

    fn insert(&mut self, piece: Piece) {
        if !piece.range.is_empty() {
            self.cut_out(&piece.range, |_| true);
            self.0.insert(piece.range.start, piece);
        }
    }

    /// Those that touch a range, in order.
    fn over(&self, range: &Range<u64>) -> impl Iterator<Item = &Piece> {
        let first = self.0.range(..range.start).next_back().map(|(_, piece)| piece);
        let first = first.filter(|piece| piece.range.end > range.start && !range.is_empty());
        first.into_iter().chain(self.0.range(range.clone()).map(|(_, piece)| piece))
    }
}

/// A write that no flush has seen; without content, the place in the order at which a FUA write made part of what lies
/// before it dead.
struct Write {
    number: u64,
    range: Range<u64>,
    content: Option<Content>,
    /// Ascending, apart from each other.
    dead: Vec<Range<u64>>,
}

impl Write {
    /// Notes a range as dead. Whether that was new.
    fn kill(&mut self, range: &Range<u64>) -> bool {
        let (start, end) = (self.range.start.max(range.start), self.range.end.min(range.end));
        if start >= end || self.dead.iter().any(|dead| dead.start <= start && end <= dead.end) {
            return false;
        }
        let (touching, mut apart): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.dead).into_iter().partition(|dead| dead.start <= end && start <= dead.end);
        let whole = touching.iter().fold(start..end, |all, dead| all.start.min(dead.start)..all.end.max(dead.end));
        apart.push(whole);
        apart.sort_by_key(|dead| dead.start);
        self.dead = apart;
        true
    }

    /// The parts of `part`, in sectors from its start, that are not dead.
    fn live(&self, part: Range<u64>) -> impl Iterator<Item = Piece> {
        let (mut at, end) = (self.range.start + part.start, self.range.start + part.end);
        let mut ranges = Vec::new();
        for dead in &self.dead {
            if dead.end > at && dead.start < end {
                ranges.push(at..dead.start);
                at = dead.end;
            }
        }
        ranges.push(at..end);
        let ranges = ranges.into_iter().filter(|range| range.start < range.end);
        ranges.filter_map(|range| {
            let content = self.content.clone()?;
            let skip = range.start - self.range.start;
            Some(Piece { range, number: self.number, content, skip })
        })
    }

    fn all(&self) -> Range<u64> {
        0..self.range.end - self.range.start
    }

    fn bytes(&self) -> u64 {
        self.content.as_ref().map_or(OVERHEAD, Content::bytes)
    }
}

/// What a cut has left.
pub(super) struct Left {
    /// What is to be written, in any order.
    pub(super) pieces: Vec<Piece>,
    /// Of the writes, so many are there as a whole, in part, and not at all; what was overwritten by another counts as
    /// there.
    pub(super) counts: [u64; 3],
    pub(super) sectors: Sectors,
}

#[derive(Default)]
pub(super) struct Cache {
    writes: VecDeque<Write>,
    newest: Pieces,
    next: u64,
    bytes: u64,
}

fn range_of(sector: Sector, sectors: Sectors) -> Range<u64> {
    sector.get()..(sector + sectors).get()
}

impl Cache {
    /// A write has completed.
    pub(super) fn add(&mut self, sector: Sector, sectors: Sectors, content: Content) {
        let write =
            Write { number: self.number(), range: range_of(sector, sectors), content: Some(content), dead: vec![] };
        write.live(write.all()).for_each(|piece| self.newest.insert(piece));
        self.push(write);
    }

    fn push(&mut self, write: Write) {
        self.bytes += write.bytes();
        self.writes.push_back(write);
    }

    /// A number that stands for now: writes before have less, those after have more.
    pub(super) fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Whether there is room for a write, with `most` bytes in all. In an empty cache there is, whatever its length.
    pub(super) fn has_room(&self, content: &Content, most: u64) -> bool {
        self.writes.is_empty() || self.bytes + content.bytes() <= most
    }

    /// Bytes of memory that it takes.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// How many writes no flush has seen.
    pub(super) fn len(&self) -> u64 {
        self.writes.iter().filter(|write| write.content.is_some()).count() as u64
    }

    /// What it has of a range, in order.
    pub(super) fn read(&self, sector: Sector, sectors: Sectors) -> Vec<Piece> {
        let range = range_of(sector, sectors);
        let clip = |piece: &Piece| piece.part(piece.range.start.max(range.start)..piece.range.end.min(range.end));
        self.newest.over(&range).map(clip).collect()
    }

    /// What has to be written for all that is older than `number` to be on the device.
    pub(super) fn older(&self, number: u64) -> Vec<Piece> {
        let mut pieces = Pieces::default();
        for write in self.writes.iter().take_while(|write| write.number < number) {
            write.live(write.all()).for_each(|piece| pieces.insert(piece));
        }
        pieces.0.into_values().collect()
    }

    /// All that is older than `number` is on the device.
    pub(super) fn forget(&mut self, number: u64) {
        let done = self.writes.partition_point(|write| write.number < number);
        self.bytes -= self.writes.drain(..done).map(|write| write.bytes()).sum::<u64>();
        self.newest.0.retain(|_, piece| piece.number >= number);
    }

    /// The number of which all that is older has to go for a write to have room: half of it, as disks do not write back
    /// for each write.
    pub(super) fn excess(&self, content: &Content, most: u64) -> u64 {
        let most = most.saturating_sub(content.bytes()).min(most / 2);
        let mut left = self.bytes;
        let stays = |write: &&Write| {
            let stays = left <= most;
            left -= write.bytes();
            stays
        };
        self.writes.iter().find(stays).map_or(self.next + 1, |write| write.number)
    }

    /// A FUA write that began at `number` is on the device.
    pub(super) fn durable(&mut self, number: u64, sector: Sector, sectors: Sectors) {
        let range = range_of(sector, sectors);
        let older = |write: &&mut Write| write.number < number && write.content.is_some();
        let hits = self.writes.iter_mut().filter(older).filter_map(|write| write.kill(&range).then_some(())).count();
        self.newest.cut_out(&range, |piece| piece < number);
        if hits > 0 {
            let at = self.writes.partition_point(|write| write.number < number);
            let fence = Write { number, range, content: None, dead: vec![] };
            self.bytes += fence.bytes();
            self.writes.insert(at, fence);
        }
    }

    /// What is left when the power goes, by the seed's chance.
    pub(super) fn cut(&self, seed: u64, atomic: Sectors) -> Left {
        let writes: Vec<&Write> = self.writes.iter().filter(|write| write.content.is_some()).collect();
        let place = |write: &&Write| (Sector::new(write.range.start), Sectors::new(write.all().end));
        let places: Vec<_> = writes.iter().map(place).collect();
        let (mut pieces, mut kept) = (Pieces::default(), vec![0; writes.len()]);
        survivors(&places, atomic, &mut Rng::new(seed), |at, part| {
            kept[at] += part.end - part.start;
            writes[at].live(part).for_each(|piece| pieces.insert(piece));
        });
        let mut counts = [0; 3];
        for (kept, (_, sectors)) in kept.iter().zip(&places) {
            let kind = if *kept == sectors.get() {
                0
            } else if *kept > 0 {
                1
            } else {
                2
            };
            counts[kind] += 1;
        }
        let pieces: Vec<Piece> = pieces.0.into_values().collect();
        let sectors = pieces.iter().fold(Sectors::ZERO, |all, piece| all + piece.sectors());
        Left { pieces, counts, sectors }
    }

    /// The writes as a log of log-writes, in sectors of 512 bytes: what [`of_record`](Self::of_record) reads. Marks
    /// tell the atomic unit, and where a FUA write made part of the others dead.
    pub(super) fn record(&self, atomic: Sectors) -> Vec<u8> {
        let block = BlockSize::new(SECTOR_SIZE as u32).expect("a sector is a block");
        let mut layout = Layout::new(block, Sectors::MAX);
        let mut log = vec![0; SECTOR_SIZE];
        let mut put = |entry: Entry, data: &[u8]| {
            let fits = layout.place(Sectors::in_bytes(data.len() as u64));
            debug_assert!(fits.is_ok(), "memory is smaller");
            let at = log.len();
            log.resize(at + SECTOR_SIZE, 0);
            entry.encode(&mut log[at..]);
            log.extend_from_slice(data);
        };
        let mark = |text: String| Entry::mark(text.as_bytes(), block);
        put(mark(format!("atomic {atomic}")), &[]);
        for write in &self.writes {
            let (sector, nr_sectors) = (write.range.start, write.all().end);
            let entry = |flags| Entry { sector, nr_sectors, flags, mark: Vec::new() };
            match &write.content {
                Some(Content::Data(data)) => put(entry(Flags::NONE), data),
                Some(Content::Zeroes | Content::Discard) => put(entry(Flags::DISCARD), &[]),
                None => put(mark(format!("durable {sector} {nr_sectors}")), &[]),
            }
        }
        let superblock = Superblock { entries: layout.entries(), block }.encode();
        log[..superblock.len()].copy_from_slice(&superblock);
        log.resize(log.len() + SECTOR_SIZE, 0);
        log
    }

    /// The cache that [`record`](Self::record) has told, and its atomic unit.
    pub(super) fn of_record(log: &[u8]) -> Result<(Self, Sectors), String> {
        let device = Sectors::in_bytes(log.len() as u64);
        let superblock = Superblock::decode(log, device).map_err(|e| e.to_string())?;
        let (mut reader, mut cache, mut atomic) = (Reader::new(superblock, device), Self::default(), None);
        let bytes = |at: Sector, len: Sectors| &log[(at - Sector::ZERO).as_len()..][..len.as_len()];
        while let Some((at, len)) = reader.want() {
            reader.check().map_err(|e| e.to_string())?;
            let record = reader.feed(bytes(at, len)).map_err(|e| e.to_string())?;
            let (sector, sectors, flags) = (record.sector, record.sectors, record.entry.flags);
            let text = String::from_utf8_lossy(&record.entry.mark);
            let wrong = || format!("entry {} at sector {at}: this is no record of a power cut", record.index);
            let words: Vec<&str> = text.split(' ').collect();
            let number = |at: usize| words[at].parse::<u64>().map_err(|_| wrong());
            match words[..] {
                [""] if flags == Flags::NONE => {
                    cache.add(sector, sectors, Content::Data(bytes(record.data.0, record.data.1).into()));
                }
                [""] if flags == Flags::DISCARD => cache.add(sector, sectors, Content::Zeroes),
                ["atomic", _] if number(1)? > 0 => atomic = Some(Sectors::new(number(1)?)),
                ["durable", ..] if words.len() == 3 => {
                    let (sector, sectors) = (Sector::new(number(1)?), Sectors::new(number(2)?));
                    sector.checked_add(sectors).ok_or_else(wrong)?;
                    let now = cache.number();
                    cache.durable(now, sector, sectors);
                }
                _ => return Err(wrong()),
            }
        }
        let atomic = atomic.ok_or("this is no record of a power cut: it does not tell the atomic unit")?;
        Ok((cache, atomic))
    }
}
