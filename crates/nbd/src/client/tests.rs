//! Limits and flags that an export's handshake amounts to.

use super::driver::request_flags;
use super::*;
use crate::wire::consts::cmd_flag;
use crate::wire::option::BlockSizes;
use transmission as t;
use udm_io::OpFlags;

fn agreed(size: u64, flags: u16, sizes: Option<(u32, u32, u32)>) -> Agreed {
    let block_sizes = sizes.map(|(minimum, preferred, maximum)| BlockSizes { minimum, preferred, maximum });
    Agreed { size, flags: flags | t::HAS_FLAGS, block_sizes, structured: true, allocation: None }
}

#[test]
fn size_constraints_become_limits() {
    #[track_caller]
    fn check(sizes: Option<(u32, u32, u32)>, logical: u32, physical: u32, io_min: u32, most: u64) {
        let limits = limits(&agreed(1 << 30, 0, sizes)).expect("usable");
        let found = (limits.logical_block_size, limits.physical_block_size, limits.io_min, limits.max_sectors);
        assert_eq!(found, (logical, physical, io_min, Sectors::in_bytes(most)));
    }
    check(None, 512, 4096, 4096, 32 << 20);
    check(Some((1, 4096, 1 << 25)), 512, 4096, 4096, 32 << 20);
    check(Some((4096, 4096, 1 << 20)), 4096, 4096, 4096, 1 << 20);
    check(Some((512, 65536, 70_000)), 512, 4096, 65536, 69_632);
    check(Some((512, 512, u32::MAX)), 512, 512, 512, 32 << 20);
    check(Some((65536, 65536, 100_000)), 65536, 65536, 65536, 65536);
}

#[test]
fn flags_become_limits() {
    let none = limits(&agreed(1 << 30, 0, None)).expect("usable");
    assert!(!none.fua && !none.write_cache && none.max_discard.is_zero() && none.max_write_zeroes.is_zero());
    let all = t::SEND_FLUSH | t::SEND_FUA | t::SEND_TRIM | t::SEND_WRITE_ZEROES;
    let all = limits(&agreed(1 << 30, all, Some((4096, 4096, 1 << 20)))).expect("usable");
    assert!(all.fua && all.write_cache);
    assert_eq!(all.max_discard.bytes(), u64::from(u32::MAX) / 4096 * 4096);
    assert_eq!(all.max_write_zeroes, all.max_discard);
}

#[test]
fn exports_that_are_no_devices() {
    for (size, sizes, expect) in [
        (0, None, "0 bytes"),
        (511, None, "511 bytes"),
        (4095, Some((4096, 4096, 1 << 20)), "4095 bytes"),
        (1 << 20, Some((4096, 4096, 4095)), "less than a block"),
    ] {
        let error = limits(&agreed(size, 0, sizes)).expect_err("unusable");
        assert!(error.contains(expect), "{error}");
    }
}

#[test]
fn flags_of_requests() {
    let knows = agreed(1 << 20, t::SEND_FUA, None);
    let both = OpFlags::FUA.with(OpFlags::NO_UNMAP);
    assert_eq!(request_flags(&knows, Op::Write, both), cmd_flag::FUA);
    assert_eq!(request_flags(&knows, Op::WriteZeroes, both), cmd_flag::FUA | cmd_flag::NO_HOLE);
    assert_eq!(request_flags(&knows, Op::Read, both), 0);
    assert_eq!(request_flags(&agreed(1 << 20, 0, None), Op::Write, both), 0);
}
