//! What the driver is told of a device.

use super::uapi::{Params, param};
use std::io;
use udm_base::Sectors;
use udm_io::Limits;

/// The longest discard, and zeroes in one request: no more than the kernel counts in 32 bits of bytes.
const MOST: u64 = (1 << 31) / 512;
/// The kernel's largest block is a page until 6.15.
const LARGEST_BLOCK: u32 = 4096;

/// Parameters of a device whose requests have at most `buffer` bytes.
///
/// The disk always says that it has a cache and does FUA: so the kernel sends flushes, whatever lies beneath, and the
/// device decides what there is to do. Zeroes are written by the device where those beneath cannot, which is less than
/// the kernel would send.
///
/// # Errors
/// `InvalidInput` for blocks that the driver does not take.
pub(super) fn params(sectors: Sectors, limits: &Limits, read_only: bool, buffer: usize) -> io::Result<Params> {
    let block = limits.logical_block_size.max(512);
    if !block.is_power_of_two() || block > LARGEST_BLOCK {
        let message =
            format!("blocks of {block} bytes: ublk takes 512 to {LARGEST_BLOCK}; a node of kind fuse takes others");
        return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
    }
    let physical = limits.physical_block_size.max(block).next_power_of_two();
    let per_block = u64::from(block / 512);
    let whole = |sectors: u64| (sectors.min(MOST) / per_block * per_block) as u32;
    // The driver takes powers of two. Of a stripe's width it gets the largest that divides it, for what is aligned to
    // more than there is would be in the wrong place.
    let shift = |bytes: u32| match bytes {
        0 => physical.trailing_zeros(),
        bytes => bytes.trailing_zeros().max(block.trailing_zeros()),
    } as u8;
    let mut attrs = param::VOLATILE_CACHE | param::FUA;
    if read_only {
        attrs |= param::READ_ONLY;
    }
    let granularity = limits.discard_granularity.max(block);
    Ok(Params {
        len: size_of::<Params>() as u32,
        types: param::BASIC | param::DISCARD,
        attrs,
        logical_bs_shift: shift(block),
        physical_bs_shift: shift(physical),
        io_opt_shift: shift(limits.io_opt),
        io_min_shift: shift(limits.io_min.max(physical)),
        max_sectors: (limits.max_sectors.get().clamp(per_block, buffer as u64 / 512) / per_block * per_block) as u32,
        dev_sectors: sectors.get() / per_block * per_block,
        discard_granularity: granularity,
        max_discard_sectors: whole(limits.max_discard.get()),
        max_write_zeroes_sectors: whole(MOST),
        max_discard_segments: 1,
        ..Params::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const BUFFER: usize = 512 << 10;

    fn check(limits: Limits, read_only: bool, expect: impl FnOnce(&Params)) {
        expect(&params(Sectors::new(1_000_001), &limits, read_only, BUFFER).unwrap());
    }

    #[test]
    fn memory() {
        check(Limits::default(), false, |p| {
            assert_eq!((p.len, p.types), (80, 3));
            assert_eq!(p.attrs, param::VOLATILE_CACHE | param::FUA);
            assert_eq!([p.logical_bs_shift, p.physical_bs_shift, p.io_opt_shift, p.io_min_shift], [9; 4]);
            assert_eq!((p.max_sectors, p.dev_sectors), (1024, 1_000_001));
            assert_eq!((p.discard_granularity, p.max_discard_sectors), (512, 1 << 22));
            assert_eq!((p.max_write_zeroes_sectors, p.max_discard_segments), (1 << 22, 1));
            assert_eq!((p.chunk_sectors, p.virt_boundary_mask, p.discard_alignment), (0, 0, 0));
        });
    }

    #[test]
    fn large_blocks() {
        let limits = Limits {
            logical_block_size: 4096,
            physical_block_size: 16384,
            io_min: 16384,
            // Three stripes of 64 KiB.
            io_opt: 3 << 16,
            max_sectors: Sectors::new(500),
            max_discard: Sectors::new(100),
            discard_granularity: 65536,
            ..Limits::default()
        };
        check(limits, true, |p| {
            assert_eq!(p.attrs & param::READ_ONLY, param::READ_ONLY);
            assert_eq!((p.logical_bs_shift, p.physical_bs_shift, p.io_opt_shift, p.io_min_shift), (12, 14, 16, 14));
            // Whole blocks each.
            assert_eq!((p.max_sectors, p.dev_sectors, p.max_discard_sectors), (496, 1_000_000, 96));
            assert_eq!(p.discard_granularity, 65536);
        });
    }

    #[test]
    fn no_discards() {
        check(Limits { max_discard: Sectors::ZERO, ..Limits::default() }, false, |p| {
            assert_eq!((p.max_discard_sectors, p.max_write_zeroes_sectors), (0, 1 << 22));
            // The driver refuses 0.
            assert_eq!(p.discard_granularity, 512);
        });
    }

    #[test]
    fn blocks_that_are_refused() {
        for block in [8192, 65536, 1000] {
            let limits = Limits { logical_block_size: block, ..Limits::default() };
            let error = params(Sectors::new(8), &limits, false, BUFFER).unwrap_err();
            assert!(error.to_string().contains(&format!("blocks of {block} bytes")), "{error}");
        }
    }
}
