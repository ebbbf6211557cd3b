//! # Purpose
//! Gives a device smaller blocks than it has, as 512-byte sectors on a disk that knows only 4096.
//! # Table
//! `<start> <length> ebs <device> <start sector> <emulated block> [<block of the device>]`
//!
//! Blocks are counted in sectors, and powers of two; the emulated one is of 8 at most. What is not given is the
//! device's logical block. The start sector is a multiple of the device's block, and less than the length.
//! # Status
//! Empty.
//! # Messages
//! None.
//! # Differences from the kernel
//! There is no cache: part of a block is read, changed and written, with no other write to it at the same time. The
//! kernel's `dm-bufio` writes all that is dirty before a write ends; and it sends a write of whole blocks past its
//! cache, where a write of a part that is under way undoes it (`drivers/md/dm-ebs-target.c`, 6.12).

mod parts;
mod ranges;

use parts::Parts;
use std::sync::Arc;
use udm_base::{ArgError, Sector, Sectors};
use udm_core::{Ctr, Map, NewTarget, StatusKind, Target, TargetDevice, TargetType, Until};
use udm_io::{Bio, Cx, ExtentsReply, Limits, Op, Status};

pub(crate) static TYPE: TargetType = TargetType::new("ebs", [1, 0, 1], ctr);

/// Sectors of an emulated block at most: a page.
const EMULATED_MAX: u64 = 8;
/// What the kernel's `%hu` takes at most.
const BLOCK_MAX: u64 = u16::MAX as u64;
/// Reads and writes are split at multiples of this, or of the block, so that what is copied is bounded.
const PIECE: u64 = 2048;

struct Ebs {
    to: TargetDevice,
    /// In sectors, as the following.
    emulated: u64,
    block: u64,
    /// Whether the table names the block.
    is_given: bool,
    parts: Arc<Parts>,
}

fn ctr(ctr: &mut Ctr<'_>) -> Result<NewTarget, ArgError> {
    const START: &str = "Invalid device offset sector";
    const NO_DEVICE: &str = "Device lookup failed";
    let usage = "<device> <start sector> <emulated block> [<block of the device>]";
    ctr.args.expect_count(3..=4, "Invalid argument count", usage)?;
    let name = ctr.args.need(NO_DEVICE, "a device")?;
    let (start, start_arg) = ctr.args.number_within(0..=ctr.len.get() - 1, START, "a start sector")?;
    let emulated = block(ctr, EMULATED_MAX, "Invalid emulated block size")?;
    let is_given = ctr.args.left() > 0;
    let given = is_given.then(|| block(ctr, BLOCK_MAX, "Invalid underlying block size")).transpose()?;
    let dev = ctr.device(&name, NO_DEVICE)?;
    let block = given.unwrap_or_else(|| u64::from(dev.limits().logical_block_size) / 512);
    if !start.is_multiple_of(block) {
        let hint = format!("expected a multiple of {block} sectors, found {start}");
        return Err(ArgError::new("Device offset must be multiple of underlying block size").hint(hint).at(&start_arg));
    }
    let to = TargetDevice { dev: dev.clone(), start: Sector::new(start), len: ctr.len };
    let ebs = Ebs { to: to.clone(), emulated, block, is_given, parts: Arc::new(Parts::new(dev, block)) };
    let piece = Sectors::new(PIECE.max(block));
    Ok(NewTarget::new(ebs).maps_to([to]).in_place().takes_back().split_at(piece).whole_discards())
}

impl Target for Ebs {
    fn map(&self, cx: &Cx<'_>, mut bio: Bio, at: Sectors) -> Map<'_> {
        bio.set_sector(self.to.start + at);
        if bio.op() != Op::Read {
            let id = self.parts.enter(&bio);
            return self.write(cx, bio, id);
        }
        if self.is_whole(&bio) {
            return Map::Remapped(bio, &*self.to.dev);
        }
        self.parts.read(cx, bio);
        Map::Kept
    }

    /// A write that waited for others.
    fn resume_io(&self, cx: &Cx<'_>, mut bio: Bio, at: Sectors, id: u64) -> Map<'_> {
        bio.set_sector(self.to.start + at);
        self.write(cx, bio, id)
    }

    /// A write of whole blocks.
    fn end_io(&self, _: &Cx<'_>, bio: Bio, _: Sectors, id: u64) -> Map<'_> {
        self.parts.leave(id);
        let status = bio.status();
        Map::Ended(bio, status)
    }

    fn status(&self, kind: StatusKind) -> String {
        let Self { to, emulated, block, .. } = self;
        match kind {
            StatusKind::Table if self.is_given => format!("{} {} {emulated} {block}", to.dev.name(), to.start),
            StatusKind::Table => format!("{} {} {emulated}", to.dev.name(), to.start),
            _ => String::new(),
        }
    }

    /// `ebs_io_hints`.
    fn limits(&self, limits: &mut Limits) {
        limits.logical_block_size = (self.emulated * 512) as u32;
        limits.physical_block_size = (self.block.max(self.emulated) * 512) as u32;
        limits.alignment_offset = 0;
        limits.io_min = limits.physical_block_size;
        limits.max_write_zeroes = Sectors::ZERO;
    }

    fn extents(&self, cx: &Cx<'_>, at: Sectors, sectors: Sectors, reply: ExtentsReply) {
        self.to.dev.extents(cx, self.to.start + at, sectors, reply);
    }
}

fn block(ctr: &mut Ctr<'_>, most: u64, message: &str) -> Result<u64, ArgError> {
    let (block, arg) = ctr.args.number_within(1..=most, message, "a power of two, in sectors,")?;
    if block.is_power_of_two() {
        return Ok(block);
    }
    Err(ArgError::new(message).hint(format!("expected a power of two, found {block}")).at(&arg))
}

impl Ebs {
    /// Whether a bio, which has its place beneath, is of whole blocks.
    fn is_whole(&self, bio: &Bio) -> bool {
        (bio.sector().get() | bio.end_sector().get()) & (self.block - 1) == 0
    }

    /// Does a write that has entered, or has it wait for those before it.
    fn write(&self, cx: &Cx<'_>, mut bio: Bio, id: u64) -> Map<'_> {
        // Before it is looked whether it has to wait, so that an end of the wait in between is not missed.
        let ticket = self.parts.held.ticket();
        if self.parts.waits(id) {
            return Map::Delayed(bio, Until::Released(&self.parts.held, ticket), id);
        }
        if bio.op() == Op::Discard && !self.cut_to_whole(&mut bio) {
            self.parts.leave(id);
            return Map::Ended(bio, Status::Ok);
        }
        if self.is_whole(&bio) {
            return Map::WithEndIo(bio, &*self.to.dev, id);
        }
        self.parts.write(cx, bio, id);
        Map::Kept
    }

    /// Leaves the whole blocks of a discard; false when there are none. Such bios are always clones.
    fn cut_to_whole(&self, bio: &mut Bio) -> bool {
        let first = bio.sector().get().next_multiple_of(self.block);
        let end = bio.end_sector().get() / self.block * self.block;
        if first >= end {
            return false;
        }
        bio.set_sector(Sector::new(first));
        bio.truncate(Sectors::new(end - first));
        true
    }
}
