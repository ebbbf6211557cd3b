//! Sector 0.

use super::raw::{MAGIC, RawSuperblock, SUPERBLOCK_BYTES, VERSION};
use super::{Error, ErrorKind};
use udm_base::{SECTOR_SIZE, Sectors};
use zerocopy::{FromBytes, IntoBytes, U32, U64};

/// The largest unit that is read: the largest page of any machine that runs Linux.
const LARGEST: u32 = 64 << 10;

/// The unit of a log: a logical block of the device whose writes are logged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BlockSize(Sectors);

impl BlockSize {
    /// A unit of so many bytes. `None`: no power of two from 512 to 65536.
    pub const fn new(bytes: u32) -> Option<Self> {
        let fits = bytes.is_power_of_two() && bytes as usize >= SECTOR_SIZE && bytes <= LARGEST;
        if fits { Some(Self(Sectors::in_bytes(bytes as u64))) } else { None }
    }

    /// In bytes.
    pub const fn bytes(self) -> u32 {
        self.0.bytes() as u32
    }

    /// In sectors of 512 bytes.
    pub const fn sectors(self) -> Sectors {
        self.0
    }

    /// How many whole units `sectors` are.
    pub const fn in_units(self, sectors: Sectors) -> u64 {
        sectors.get() / self.0.get()
    }

    /// So many units, unless that is more than can be.
    pub const fn units(self, n: u64) -> Option<Sectors> {
        match n.checked_mul(self.0.get()) {
            Some(n) if n <= u64::MAX / SECTOR_SIZE as u64 => Some(Sectors::new(n)),
            _ => None,
        }
    }
}

/// What the first sector says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Superblock {
    /// How many entries there are. Written after each FUA write and mark: entries may follow that it does not count.
    pub entries: u64,
    /// The unit of all places and lengths.
    pub block: BlockSize,
}

impl Superblock {
    /// Reads the first bytes of a log device; [`SUPERBLOCK_BYTES`] are enough. `device` is its size.
    ///
    /// # Errors
    /// When the device is too short, holds something else, or a version or numbers that cannot be.
    pub fn decode(bytes: &[u8], device: Sectors) -> Result<Self, Error> {
        let Ok((raw, _)) = RawSuperblock::read_from_prefix(bytes) else {
            let what = format!("the log device ends after {} bytes, and this has {SUPERBLOCK_BYTES}", bytes.len());
            return Err(Error::superblock(ErrorKind::Truncated, "length", what));
        };
        if raw.magic.get() != MAGIC {
            let what = format!(
                "found {:#018x}, expected {MAGIC:#018x}: this is no log, or one to which no FUA write and no mark has \
                 been logged yet; send the device a `mark`",
                raw.magic
            );
            return Err(Error::superblock(ErrorKind::Foreign, "magic", what));
        }
        if raw.version.get() != VERSION {
            let what = format!("found {}, expected {VERSION}: it is of a kernel that came later", raw.version);
            return Err(Error::superblock(ErrorKind::Version, "version", what));
        }
        let Some(block) = BlockSize::new(raw.sectorsize.get()) else {
            let what = format!("found {}, expected a power of two from 512 to {LARGEST}", raw.sectorsize);
            return Err(Error::superblock(ErrorKind::SectorSize, "sectorsize", what));
        };
        let entries = raw.nr_entries.get();
        let most = block.in_units(device).saturating_sub(1);
        if entries > most {
            let what = format!("found {entries}, and on a device of {device} sectors there is room for {most}");
            return Err(Error::superblock(ErrorKind::Truncated, "nr_entries", what));
        }
        Ok(Self { entries, block })
    }

    /// The bytes that sector 0 begins with; the rest of it is zero.
    pub fn encode(&self) -> [u8; SUPERBLOCK_BYTES] {
        let raw = RawSuperblock {
            magic: U64::new(MAGIC),
            version: U64::new(VERSION),
            nr_entries: U64::new(self.entries),
            sectorsize: U32::new(self.block.bytes()),
            padding: U32::new(0),
        };
        let mut bytes = [0; SUPERBLOCK_BYTES];
        bytes.copy_from_slice(raw.as_bytes());
        bytes
    }
}
