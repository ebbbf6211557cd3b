//! From entry to entry.

use super::{Entry, Error, ErrorKind, Flags, Superblock};
use udm_base::{Sector, Sectors};

/// Goes through a log: [`want`](Self::want) says what to read, [`feed`](Self::feed) takes it.
#[derive(Clone, Debug)]
pub struct Reader {
    superblock: Superblock,
    device: Sectors,
    index: u64,
    at: Sector,
}

/// An entry, and where it lies on the log device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Record {
    /// Its number, from 0.
    pub index: u64,
    /// Where it stands.
    pub at: Sector,
    /// What it says.
    pub entry: Entry,
    /// Where on the device whose writes are logged.
    pub sector: Sector,
    /// How long there.
    pub sectors: Sectors,
    /// Its data on the log device; as many sectors as it is long, none for a discard.
    pub data: (Sector, Sectors),
}

impl Record {
    /// Where what follows it on the log device begins.
    pub fn end(&self) -> Sector {
        self.data.0 + self.data.1
    }
}

impl Reader {
    /// From the first entry of a log on a device of `device` sectors.
    pub fn new(superblock: Superblock, device: Sectors) -> Self {
        Self { superblock, device, index: 0, at: superblock.block.sectors().from_start() }
    }

    /// The sectors of the next entry, without its data. `None` after the last that the superblock counts.
    pub fn want(&self) -> Option<(Sector, Sectors)> {
        (self.index < self.superblock.entries).then(|| (self.at, self.superblock.block.sectors()))
    }

    /// The number of the next entry.
    pub fn index(&self) -> u64 {
        self.index
    }

    /// Where the next entry would stand.
    pub fn at(&self) -> Sector {
        self.at
    }

    /// Whether the sectors that [`want`](Self::want) names lie on the device; so that nobody reads past its end.
    ///
    /// # Errors
    /// When they do not.
    pub fn check(&self) -> Result<(), Error> {
        let block = self.superblock.block.sectors();
        match self.at.checked_add(block) {
            Some(end) if end <= self.device.from_start() => Ok(()),
            _ => Err(self.ends("length", "the entry")),
        }
    }

    fn ends(&self, field: &'static str, what: &str) -> Error {
        let (entries, device) = (self.superblock.entries, self.device);
        let what = format!(
            "{what} reaches past the device's end at {device}, though the superblock counts {entries} entries: the log \
             was cut short"
        );
        self.wrong((ErrorKind::Truncated, field, what))
    }

    fn wrong(&self, (kind, field, what): (ErrorKind, &'static str, String)) -> Error {
        Error { kind, sector: self.at, entry: Some(self.index), field, what }
    }

    /// Takes the sectors that [`want`](Self::want) has named.
    ///
    /// # Errors
    /// When they hold no entry, or one whose data is not on the device. The reader stays where it is.
    pub fn feed(&mut self, bytes: &[u8]) -> Result<Record, Error> {
        self.check()?;
        let block = self.superblock.block;
        let entry = Entry::decode(bytes, block).map_err(|wrong| self.wrong(wrong))?;
        let place = block.units(entry.sector).map(Sectors::from_start);
        let range = place.zip(block.units(entry.nr_sectors)).filter(|(at, len)| at.checked_add(*len).is_some());
        let Some((sector, sectors)) = range else {
            let what = format!("{} + {} is no place on any device", entry.sector, entry.nr_sectors);
            return Err(self.wrong((ErrorKind::Corrupt, "sector", what)));
        };
        let at = self.at + block.sectors();
        let data = if entry.flags.contains(Flags::DISCARD) { Sectors::ZERO } else { sectors };
        let end = at.checked_add(data).filter(|end| *end <= self.device.from_start());
        let Some(end) = end else {
            return Err(self.ends("nr_sectors", &format!("its data of {data} sectors")));
        };
        let record = Record { index: self.index, at: self.at, entry, sector, sectors, data: (at, data) };
        (self.index, self.at) = (self.index + 1, end);
        Ok(record)
    }
}
