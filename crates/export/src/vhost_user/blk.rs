//! virtio-blk: features, configuration and requests (virtio 1.2, 5.2), for both sides.

use udm_base::Sectors;
use udm_io::Limits;

/// Features of the device and of its rings, as bits.
pub(super) mod feature {
    pub(crate) const SEG_MAX: u64 = 1 << 2;
    pub(crate) const RO: u64 = 1 << 5;
    pub(crate) const BLK_SIZE: u64 = 1 << 6;
    pub(crate) const FLUSH: u64 = 1 << 9;
    pub(crate) const TOPOLOGY: u64 = 1 << 10;
    pub(crate) const MQ: u64 = 1 << 12;
    pub(crate) const DISCARD: u64 = 1 << 13;
    pub(crate) const WRITE_ZEROES: u64 = 1 << 14;
    pub(crate) const INDIRECT: u64 = 1 << 28;
    pub(crate) const EVENT_IDX: u64 = 1 << 29;
    /// vhost-user's own: the features of the protocol can be negotiated.
    pub(crate) const PROTOCOL: u64 = 1 << 30;
    pub(crate) const VERSION_1: u64 = 1 << 32;
}

/// What a request asks for.
pub(super) mod kind {
    pub(crate) const IN: u32 = 0;
    pub(crate) const OUT: u32 = 1;
    pub(crate) const FLUSH: u32 = 4;
    pub(crate) const GET_ID: u32 = 8;
    pub(crate) const DISCARD: u32 = 11;
    pub(crate) const WRITE_ZEROES: u32 = 13;
}

/// What the last byte of a request says in the end.
pub(super) mod status {
    pub(crate) const OK: u8 = 0;
    pub(crate) const IOERR: u8 = 1;
    pub(crate) const UNSUPP: u8 = 2;
}

/// Bytes of a request's head: kind, reserved, sector.
pub(super) const HEAD: usize = 16;
/// Bytes of one range of a discard or of zeroes: sector, sectors, flags.
pub(super) const RANGE: usize = 16;
/// Ranges in a request at most.
pub(super) const MAX_RANGES: usize = 64;
/// In a range's flags: zeroes may be holes.
pub(super) const UNMAP: u32 = 1;
/// Bytes of the answer to `GET_ID`.
pub(super) const ID: usize = 20;
/// Bytes of the configuration, as far as it is used; what follows is zero.
pub(super) const CONFIG: usize = 60;
/// Bytes of configuration that a front end may ask for (`VHOST_USER_MAX_CONFIG_SIZE`).
pub(super) const MAX_CONFIG: usize = 256;

/// What is told of a device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Config {
    pub(super) sectors: Sectors,
    pub(super) seg_max: u32,
    pub(super) block_size: u32,
    pub(super) physical_exponent: u8,
    pub(super) alignment_offset: u8,
    pub(super) min_io: u16,
    pub(super) opt_io: u32,
    pub(super) queues: u16,
    pub(super) max_discard: u32,
    pub(super) discard_alignment: u32,
    pub(super) max_zeroes: u32,
}

impl Config {
    /// That of a device. Units: blocks of `block_size` for the topology, sectors for the limits.
    pub(super) fn new(sectors: Sectors, limits: &Limits, queues: u16, seg_max: u32) -> Self {
        let block = limits.logical_block_size.max(512);
        let in_blocks = |bytes: u32| bytes / block;
        let clamp = |sectors: Sectors| {
            // Whole blocks, and a size that no driver overflows with when it counts bytes in 32 bits.
            let most = (1u64 << 31) / 512;
            (sectors.get().min(most) / u64::from(block / 512) * u64::from(block / 512)) as u32
        };
        Self {
            sectors,
            seg_max,
            block_size: block,
            physical_exponent: (limits.physical_block_size.max(block) / block).ilog2() as u8,
            alignment_offset: in_blocks(limits.alignment_offset).min(255) as u8,
            min_io: in_blocks(limits.io_min).min(65535) as u16,
            opt_io: in_blocks(limits.io_opt),
            queues,
            max_discard: clamp(limits.max_discard),
            discard_alignment: limits.discard_granularity.max(block) / 512,
            max_zeroes: clamp(Sectors::MAX),
        }
    }

    /// `struct virtio_blk_config`, little-endian, and zeroes behind it.
    pub(super) fn bytes(&self) -> [u8; MAX_CONFIG] {
        let mut out = [0; MAX_CONFIG];
        let mut put = |at: usize, bytes: &[u8]| out[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, &self.sectors.get().to_le_bytes());
        put(12, &self.seg_max.to_le_bytes());
        put(20, &self.block_size.to_le_bytes());
        put(24, &[self.physical_exponent, self.alignment_offset]);
        put(26, &self.min_io.to_le_bytes());
        put(28, &self.opt_io.to_le_bytes());
        // Write back; nobody is asked to switch it.
        put(32, &[1]);
        put(34, &self.queues.to_le_bytes());
        put(36, &self.max_discard.to_le_bytes());
        put(40, &(MAX_RANGES as u32).to_le_bytes());
        put(44, &self.discard_alignment.to_le_bytes());
        put(48, &self.max_zeroes.to_le_bytes());
        put(52, &(MAX_RANGES as u32).to_le_bytes());
        // Zeroes may be holes.
        put(56, &[1]);
        out
    }

    /// What a back end told. The fields that udm's front end does not use are not looked at.
    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        let u16_at = |at: usize| Some(u16::from_le_bytes(bytes.get(at..at + 2)?.try_into().ok()?));
        let u32_at = |at: usize| Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
        let sectors = u64::from_le_bytes(bytes.get(..8)?.try_into().ok()?);
        Some(Self {
            // More than any device has: a nonsense of the other side, as is more than 2^63 bytes.
            sectors: Sectors::new(sectors.min(1 << 54)),
            seg_max: u32_at(12)?,
            block_size: u32_at(20)?,
            physical_exponent: *bytes.get(24)?,
            alignment_offset: *bytes.get(25)?,
            min_io: u16_at(26)?,
            opt_io: u32_at(28)?,
            queues: u16_at(34)?,
            max_discard: u32_at(36)?,
            discard_alignment: u32_at(44)?,
            max_zeroes: u32_at(48)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let limits = Limits {
            logical_block_size: 4096,
            physical_block_size: 16384,
            io_min: 16384,
            io_opt: 1 << 20,
            max_discard: Sectors::new(100),
            discard_granularity: 65536,
            ..Limits::default()
        };
        let config = Config::new(Sectors::new(12_345_678), &limits, 3, 126);
        assert_eq!((config.physical_exponent, config.min_io, config.opt_io), (2, 4, 256));
        assert_eq!((config.max_discard, config.discard_alignment, config.max_zeroes), (96, 128, 1 << 22));
        assert_eq!(Config::parse(&config.bytes()[..CONFIG]), Some(config));
        assert_eq!(Config::parse(&[0; 40]), None);
    }
}
