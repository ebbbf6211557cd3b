//! One entry of a log.

use super::raw::{ENTRY_BYTES, RawEntry};
use super::{BlockSize, ErrorKind};
use std::fmt;
use zerocopy::{FromBytes, IntoBytes, U64};

/// What an entry is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Flags(u64);

impl Flags {
    /// A plain write.
    pub const NONE: Self = Self(0);
    /// A flush; the entries before it were complete when it was sent, or are FUA writes.
    pub const FLUSH: Self = Self(1);
    /// A write with FUA.
    pub const FUA: Self = Self(2);
    /// A discard: no data follows.
    pub const DISCARD: Self = Self(4);
    /// A mark: its text follows the entry in its sector.
    pub const MARK: Self = Self(8);
    /// A write of a file system's metadata (`REQ_META`), as the kernel notes them; udm's bios do not tell.
    pub const METADATA: Self = Self(16);

    const NAMES: [(Self, &'static str); 5] = [
        (Self::FLUSH, "FLUSH"),
        (Self::FUA, "FUA"),
        (Self::DISCARD, "DISCARD"),
        (Self::MARK, "MARK"),
        (Self::METADATA, "METADATA"),
    ];

    /// Whether all of `flags` are set.
    pub const fn contains(self, flags: Self) -> bool {
        self.0 & flags.0 == flags.0
    }

    /// Whether one of `flags` is set.
    pub const fn intersects(self, flags: Self) -> bool {
        self.0 & flags.0 != 0
    }

    /// Both sets together.
    #[must_use]
    pub const fn with(self, flags: Self) -> Self {
        Self(self.0 | flags.0)
    }
}

/// As xfstests' `replay-log` writes them: `FLUSH|METADATA`, or `NONE`.
impl fmt::Display for Flags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let set: Vec<&str> =
            Self::NAMES.iter().filter(|(flag, _)| self.contains(*flag)).map(|(_, name)| *name).collect();
        if set.is_empty() { f.write_str("NONE") } else { f.write_str(&set.join("|")) }
    }
}

/// An entry: what was done, in units of the log's [`BlockSize`].
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Entry {
    /// Where on the device, as the mapped device counts.
    pub sector: u64,
    /// How long. 0 for a flush and a mark.
    pub nr_sectors: u64,
    /// What it is.
    pub flags: Flags,
    /// A mark's text, without zero bytes; empty otherwise.
    pub mark: Vec<u8>,
}

/// What is wrong with an entry: the kind, the field and a text.
pub(super) type Wrong = (ErrorKind, &'static str, String);

fn corrupt<T>(field: &'static str, what: String) -> Result<T, Wrong> {
    Err((ErrorKind::Corrupt, field, what))
}

impl Entry {
    /// A mark. What does not fit is cut off, as in the kernel (`log_mark`).
    pub fn mark(text: &[u8], block: BlockSize) -> Self {
        let text = text.split(|byte| *byte == 0).next().unwrap_or_default();
        let most = Self::longest_mark(block);
        Self { flags: Flags::MARK, mark: text[..text.len().min(most)].to_vec(), ..Self::default() }
    }

    /// The longest text of a mark: the kernel keeps a byte for the zero at its end.
    pub const fn longest_mark(block: BlockSize) -> usize {
        block.bytes() as usize - ENTRY_BYTES - 1
    }

    /// Writes it to its sector of the log, all bytes of which are set.
    ///
    /// # Panics
    /// When that is too short for it.
    pub fn encode(&self, sector: &mut [u8]) {
        let raw = RawEntry {
            sector: U64::new(self.sector),
            nr_sectors: U64::new(self.nr_sectors),
            flags: U64::new(self.flags.0),
            data_len: U64::new(self.mark.len() as u64),
        };
        sector.fill(0);
        sector[..ENTRY_BYTES].copy_from_slice(raw.as_bytes());
        sector[ENTRY_BYTES..][..self.mark.len()].copy_from_slice(&self.mark);
    }

    /// Reads an entry from its whole sector.
    pub(super) fn decode(sector: &[u8], block: BlockSize) -> Result<Self, Wrong> {
        let Ok((raw, rest)) = RawEntry::read_from_prefix(sector) else {
            return corrupt("length", format!("{} bytes, expected a sector of {}", sector.len(), block.bytes()));
        };
        let flags = Flags(raw.flags.get());
        let known = Flags::NAMES.iter().fold(0, |all, (flag, _)| all | flag.0);
        if flags.0 & !known != 0 {
            return corrupt("flags", format!("found {:#x}, expected none but {known:#x}", flags.0));
        }
        let (nr_sectors, data_len) = (raw.nr_sectors.get(), raw.data_len.get());
        let is_mark = flags == Flags::MARK;
        if flags.contains(Flags::MARK) && !is_mark {
            return corrupt("flags", format!("found {flags}: a mark is nothing else"));
        }
        if flags.contains(Flags::DISCARD) && flags.intersects(Flags::FLUSH.with(Flags::FUA)) {
            return corrupt("flags", format!("found {flags}: a discard is no flush and no FUA write"));
        }
        if flags == Flags::NONE && nr_sectors == 0 {
            return corrupt("flags", "neither flags nor a length: there is no entry here".into());
        }
        if is_mark && (nr_sectors != 0 || data_len > Self::longest_mark(block) as u64) {
            let most = Self::longest_mark(block);
            return corrupt(
                "data_len",
                format!("a mark of {nr_sectors} sectors and {data_len} bytes, expected 0 and {most} at most"),
            );
        }
        // Kernels from 4.15 to 5.x put the data of DAX writes so, and said how many bytes they were.
        let inline = nr_sectors.checked_mul(block.bytes().into()) == Some(data_len);
        if !is_mark && data_len != 0 && !inline {
            return corrupt("data_len", format!("found {data_len}, expected 0 of what is no mark"));
        }
        let text = if is_mark { data_len as usize } else { 0 };
        let (mark, padding) = rest.split_at_checked(text).unwrap_or((rest, &[]));
        if mark.contains(&0) {
            return corrupt("mark", "a text with a zero byte".into());
        }
        if let Some(at) = padding.iter().position(|byte| *byte != 0) {
            let at = ENTRY_BYTES + text + at;
            return corrupt("padding", format!("byte {at} of the sector is {:#04x}, expected zero", sector[at]));
        }
        Ok(Self { sector: raw.sector.get(), nr_sectors, flags, mark: mark.to_vec() })
    }
}
