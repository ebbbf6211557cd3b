//! # Purpose
//! Passes everything on to a device, and writes a log of the writes to another: what was written, in what order, and
//! where the flushes were. `udm log-writes` replays it.
//! # Table
//! `<start> <length> log-writes <device> <log device>`
//! # Status
//! `<logged entries> <highest allocated sector> [logging_disabled]`, the sector being one of the log device.
//! # Messages
//! `mark <text>`: an entry that says so. What follows the first part of the text that fits a sector is cut off.
//! # Differences from the kernel
//! `mark` waits until the mark is on the log device. A table that is loaded for the same two devices goes on with the
//! log; the kernel begins a second one over the first. A log belongs to one device. When 64 MiB wait for the log
//! device, writes wait too; when 1 GiB waits for a flush, logging ends with `Error allocating pending block`, where the
//! kernel takes all the memory that there is. A table that was never resumed leaves the log as it is.
//! (`drivers/md/dm-log-writes.c`, 6.12.)

mod log;
mod order;
mod writer;

use log::Log;
use std::sync::Arc;
use udm_base::{ArgError, Errno, Sectors};
use udm_core::{Ctr, Error, Map, NewTarget, StatusKind, Target, TargetDevice, TargetType, Until};
use udm_io::{Bio, Cx, ExtentsReply, Limits, Op, OpFlags, Status};

pub(crate) static TYPE: TargetType = TargetType::new("log-writes", [1, 1, 0], ctr);

/// In a bio's context beside the number of its block: the device has no FUA, and a flush stands for it.
const FLUSH_AFTER: u64 = 1 << 63;
/// The longest discard of a device that takes none itself (`UINT_MAX >> SECTOR_SHIFT`).
const LONGEST_DISCARD: Sectors = Sectors::new(u32::MAX as u64 >> udm_base::SECTOR_SHIFT);

struct LogWrites {
    to: TargetDevice,
    log: Arc<Log>,
    /// Whether the device does FUA, or needs none.
    fua: bool,
    discards: bool,
}

fn ctr(ctr: &mut Ctr<'_>) -> Result<NewTarget, ArgError> {
    // More than two are not looked at, as in the kernel.
    ctr.args.expect_count(2..=usize::MAX, "Invalid argument count", "<device> <log device>")?;
    let name = ctr.args.need("Device lookup failed", "a device")?;
    let dev = ctr.device(&name, "Device lookup failed")?;
    let log_name = ctr.args.need("Log device lookup failed", "a log device")?;
    let log_dev = ctr.device(&log_name, "Log device lookup failed")?;
    // Bios keep their sectors: a target that does not begin at 0 begins there on the device, too.
    let to = TargetDevice { dev: dev.clone(), start: ctr.begin, len: ctr.len };
    let limits = dev.limits();
    let log = Log::of(ctr.domain, dev, log_dev.clone())
        .map_err(|(errno, why)| ArgError::new("Log device lookup failed").errno(errno).hint(why).at(&log_name))?;
    let target = LogWrites {
        to: to.clone(),
        log,
        fua: limits.fua || !limits.write_cache,
        discards: !limits.max_discard.is_zero(),
    };
    let in_place = target.fua;
    let made = NewTarget::new(target).maps_to([to]).keeps([log_dev]).takes_back().flushes_beneath();
    Ok(if in_place { made.in_place() } else { made })
}

impl Target for LogWrites {
    fn map(&self, cx: &Cx<'_>, mut bio: Bio, at: Sectors) -> Map<'_> {
        if bio.op() != Op::Flush {
            bio.set_sector(self.to.start + at);
        }
        if bio.op() == Op::Read {
            return Map::Remapped(bio, &*self.to.dev);
        }
        let ticket = self.log.behind.ticket();
        if self.log.is_behind() {
            return Map::Delayed(bio, Until::Released(&self.log.behind, ticket), 0);
        }
        let number = self.log.begin(&bio);
        if bio.op() == Op::Discard && !self.discards {
            self.log.done(cx, number);
            return Map::Ended(bio, Status::Ok);
        }
        let flags = bio.flags();
        if self.fua || bio.op() != Op::Write || !flags.contains(OpFlags::FUA) {
            return Map::WithEndIo(bio, &*self.to.dev, number);
        }
        bio.set_flags(flags.without(OpFlags::FUA));
        Map::WithEndIo(bio, &*self.to.dev, number | FLUSH_AFTER)
    }

    fn end_io(&self, cx: &Cx<'_>, bio: Bio, _: Sectors, context: u64) -> Map<'_> {
        let (number, status) = (context & !FLUSH_AFTER, bio.status());
        if status == Status::Requeue {
            self.log.not_done(number);
        } else if context & FLUSH_AFTER != 0 && status.is_ok() {
            self.log.flush_after(cx, number, bio);
            return Map::Kept;
        } else {
            self.log.done(cx, number);
        }
        Map::Ended(bio, status)
    }

    fn resume_io(&self, cx: &Cx<'_>, bio: Bio, at: Sectors, _: u64) -> Map<'_> {
        self.map(cx, bio, at)
    }

    fn extents(&self, cx: &Cx<'_>, at: Sectors, sectors: Sectors, reply: ExtentsReply) {
        self.to.dev.extents(cx, self.to.start + at, sectors, reply);
    }

    fn status(&self, kind: StatusKind) -> String {
        match kind {
            StatusKind::Info { .. } => self.log.status(),
            StatusKind::Table => format!("{} {}", self.to.dev.name(), self.log.dev().name()),
            StatusKind::Measurement => String::new(),
        }
    }

    fn limits(&self, limits: &mut Limits) {
        limits.write_cache = true;
        limits.fua = true;
        limits.max_write_zeroes = Sectors::ZERO;
        if !self.discards {
            limits.max_discard = LONGEST_DISCARD;
            limits.discard_granularity = self.log.block().bytes();
        }
    }

    fn message(&self, words: &[&str]) -> Result<String, Error> {
        let refuse = |message: String| Err(Error::new(Errno::EINVAL, message));
        match words {
            [mark, text] if mark.eq_ignore_ascii_case("mark") => {
                self.log.mark(text.as_bytes())?;
                Ok(String::new())
            }
            [word, _] => {
                refuse(format!("Unrecognised log writes target message received: {word}: expected mark <text>"))
            }
            _ => refuse(format!(
                "Invalid log-writes message arguments, expect 2 arguments, got {}: expected mark <text>",
                words.len()
            )),
        }
    }

    fn presuspend(&self, _: bool) {
        self.log.hold_nothing(true);
    }

    fn resume(&self) {
        self.log.hold_nothing(false);
        self.log.activate();
    }
}
