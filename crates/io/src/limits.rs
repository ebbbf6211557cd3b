//! What a device can take in one bio, and how limits stack.

use udm_base::Sectors;

/// The limits of a block device, the part of the kernel's `struct queue_limits` that udm uses
/// (`include/linux/blkdev.h`, 6.12). Sizes in bytes are powers of two where the kernel's are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// The smallest unit that can be addressed, in bytes; at least 512.
    pub logical_block_size: u32,
    /// The smallest unit that is written without a read, in bytes.
    pub physical_block_size: u32,
    /// The preferred smallest I/O in bytes; 0 when nothing is preferred.
    pub io_min: u32,
    /// The preferred I/O in bytes, as a stripe's width; 0 when nothing is preferred.
    pub io_opt: u32,
    /// The longest read or write.
    pub max_sectors: Sectors,
    /// The longest discard; 0 when there is none.
    pub max_discard: Sectors,
    /// The unit of discards in bytes.
    pub discard_granularity: u32,
    /// The longest WRITE ZEROES; 0 when it has to be written out.
    pub max_write_zeroes: Sectors,
    /// Bytes from the device's start to its first physically aligned block.
    pub alignment_offset: u32,
    /// Whether what completed may still be lost without a flush.
    pub write_cache: bool,
    /// Whether the device does FUA itself.
    pub fua: bool,
    /// The alignment of memory that the device wants, in bytes; other memory is copied.
    pub dma_alignment: u32,
}

impl Default for Limits {
    /// A device in memory: every sector, every length, nothing to flush.
    fn default() -> Self {
        Self {
            logical_block_size: 512,
            physical_block_size: 512,
            io_min: 512,
            io_opt: 0,
            max_sectors: Sectors::MAX,
            max_discard: Sectors::MAX,
            discard_granularity: 512,
            max_write_zeroes: Sectors::MAX,
            alignment_offset: 0,
            write_cache: false,
            fua: true,
            dma_alignment: 1,
        }
    }
}

const fn gcd(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

const fn lcm_not_zero(a: u32, b: u32) -> u32 {
    match (a, b) {
        (0, x) | (x, 0) => x,
        _ => {
            let lcm = a as u64 / gcd(a as u64, b as u64) * b as u64;
            if lcm > u32::MAX as u64 { if a > b { a } else { b } } else { lcm as u32 }
        }
    }
}

impl Limits {
    /// Narrows these limits by those of a device beneath that starts to be used at sector `start`
    /// (`blk_stack_limits`, `block/blk-settings.c`, 6.12). The alignment offset follows the start.
    pub fn stack(&mut self, beneath: &Self, start: udm_base::Sector) {
        self.logical_block_size = self.logical_block_size.max(beneath.logical_block_size);
        self.physical_block_size = self.physical_block_size.max(beneath.physical_block_size);
        self.io_min = self.io_min.max(beneath.io_min);
        self.io_opt = lcm_not_zero(self.io_opt, beneath.io_opt);
        self.max_sectors = self.max_sectors.min(beneath.max_sectors);
        self.max_discard = self.max_discard.min(beneath.max_discard);
        self.discard_granularity = self.discard_granularity.max(beneath.discard_granularity);
        self.max_write_zeroes = self.max_write_zeroes.min(beneath.max_write_zeroes);
        self.write_cache |= beneath.write_cache;
        self.fua &= beneath.fua;
        self.dma_alignment = self.dma_alignment.max(beneath.dma_alignment);
        let granularity = u64::from(beneath.physical_block_size.max(beneath.io_min).max(512));
        let into = start.bytes() % granularity;
        let offset = (granularity + u64::from(beneath.alignment_offset) - into) % granularity;
        self.alignment_offset = self.alignment_offset.max(offset as u32);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use udm_base::Sector;

    #[test]
    fn stacking_takes_the_narrower() {
        let mut top = Limits::default();
        let disk = Limits {
            logical_block_size: 4096,
            physical_block_size: 4096,
            io_min: 4096,
            io_opt: 65536,
            max_sectors: Sectors::new(256),
            max_discard: Sectors::ZERO,
            write_cache: true,
            fua: false,
            ..Limits::default()
        };
        top.stack(&disk, Sector::ZERO);
        assert_eq!(
            (top.logical_block_size, top.max_sectors, top.max_discard),
            (4096, Sectors::new(256), Sectors::ZERO)
        );
        assert!(top.write_cache && !top.fua);
        let other = Limits { io_opt: 98304, ..Limits::default() };
        top.stack(&other, Sector::ZERO);
        assert_eq!(top.io_opt, 196_608);
    }

    #[test]
    fn alignment_follows_the_start() {
        let disk = Limits { physical_block_size: 4096, io_min: 4096, ..Limits::default() };
        for (start, offset) in [(0, 0), (8, 0), (1, 3584), (7, 512)] {
            let mut top = Limits::default();
            top.stack(&disk, Sector::new(start));
            assert_eq!(top.alignment_offset, offset, "start {start}");
        }
    }
}
