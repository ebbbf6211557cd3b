//! What a file or block device can take, as the system tells it.

use crate::backing::{Backing, Kind};
use rustix::fs::{AtFlags, FallocateFlags, StatxFlags};
use std::fs;
use udm_base::{SECTOR_SIZE, Sectors};
use udm_io::{DeviceId, Limits};

/// The alignment that direct I/O on a file asks for, in bytes; powers of two.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct DirectAlign {
    /// Of addresses in memory.
    pub(crate) memory: u32,
    /// Of addresses in the file, and of lengths.
    pub(crate) block: u32,
}

impl Backing {
    /// What the file can take, but for the alignment that direct I/O asks for.
    pub(crate) fn limits(&self) -> Limits {
        match self.kind {
            Kind::Regular => of_file(self),
            Kind::Block => of_block(self),
        }
    }
}

/// A regular file, through the page cache. Whether holes can be punched is tried out beyond the end, where it
/// changes nothing.
fn of_file(backing: &Backing) -> Limits {
    let preferred = rustix::fs::fstat(backing.fd()).map_or(4096, |s| s.st_blksize as u64);
    let preferred = if preferred.is_power_of_two() { preferred.clamp(512, 1 << 20) as u32 } else { 4096 };
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    let beyond = backing.bytes().next_multiple_of(1 << 20);
    let discards = !backing.read_only && rustix::fs::fallocate(backing.fd(), punch, beyond, 1 << 20).is_ok();
    let whole = if discards { Sectors::MAX } else { Sectors::ZERO };
    Limits {
        io_min: preferred,
        max_discard: whole,
        discard_granularity: preferred,
        max_write_zeroes: whole,
        write_cache: true,
        ..Limits::default()
    }
}

/// A block device: its queue's limits, as sysfs shows them.
fn of_block(backing: &Backing) -> Limits {
    let DeviceId::Number(dev) = backing.id else { unreachable!("a block device has a number") };
    let read = |name: &str| {
        // A partition's queue is its disk's.
        let text = fs::read_to_string(format!("/sys/dev/block/{dev}/queue/{name}"))
            .or_else(|_| fs::read_to_string(format!("/sys/dev/block/{dev}/../queue/{name}")));
        text.ok().map(|t| t.trim().to_owned())
    };
    let number = |name: &str| read(name)?.parse::<u64>().ok();
    let size = |name: &str, or: u32| {
        let n = number(name).and_then(|n| u32::try_from(n).ok());
        n.filter(|n| n.is_power_of_two() && *n as usize >= SECTOR_SIZE).unwrap_or(or)
    };
    let logical = block_size(backing).unwrap_or(512);
    let physical = size("physical_block_size", logical).max(logical);
    let alignment = fs::read_to_string(format!("/sys/dev/block/{dev}/alignment_offset")).ok();
    let io_opt = number("optimal_io_size").and_then(|n| u32::try_from(n).ok()).unwrap_or(0);
    Limits {
        logical_block_size: logical,
        physical_block_size: physical,
        io_min: size("minimum_io_size", physical),
        io_opt,
        max_sectors: Sectors::MAX,
        max_discard: Sectors::in_bytes(number("discard_max_bytes").unwrap_or(0)),
        discard_granularity: size("discard_granularity", logical),
        max_write_zeroes: Sectors::in_bytes(number("write_zeroes_max_bytes").unwrap_or(0)),
        alignment_offset: alignment.and_then(|t| t.trim().parse().ok()).unwrap_or(0),
        write_cache: read("write_cache").is_none_or(|t| t == "write back"),
        ..Limits::default()
    }
}

/// The logical block size of a block device.
fn block_size(backing: &Backing) -> Option<u32> {
    rustix::fs::ioctl_blksszget(backing.fd()).ok().filter(|n| n.is_power_of_two() && *n >= 512)
}

/// What direct I/O on the file asks for: what statx says (STATX_DIOALIGN, since 6.1), else the logical block size
/// of a block device, else what a read of one sector shows. `None` where there is no direct I/O after all.
pub(crate) fn direct_align(backing: &Backing) -> Option<DirectAlign> {
    let asked = rustix::fs::statx(backing.fd(), c"", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN);
    if let Some(statx) = asked.ok().filter(|statx| statx.stx_mask & StatxFlags::DIOALIGN.bits() != 0) {
        let (memory, block) = (statx.stx_dio_mem_align, statx.stx_dio_offset_align);
        let usable = |n: u32| n.is_power_of_two() && n <= 4096;
        return (usable(memory) && usable(block)).then_some(DirectAlign { memory, block: block.max(512) });
    }
    if let Some(block) = block_size(backing) {
        return (block <= 4096).then_some(DirectAlign { memory: block, block });
    }
    let mut buf = udm_base::AlignedBuf::zeroed(4096);
    let sizes = [512, 4096];
    let works = |size: &u32| rustix::io::pread(backing.fd(), &mut buf[..*size as usize], 0).is_ok();
    sizes.into_iter().find(works).map(|block| DirectAlign { memory: block, block })
}
