//! Bios that cannot go as they are: split at borders, cloned, fanned out or written out as zeroes.

use super::MappedDevice;
use super::back::answer;
use super::plan::{Plan, does_fua};
use super::submit::came_back;
use crate::Failed;
use crate::table::{Placed, TableSlot};
use std::sync::atomic::Ordering;
use udm_base::{Sector, Sectors};
use udm_io::{Bio, Cx, Op, OpFlags, PollPath, Segment, Status};

/// What write zeroes are made of where a device beneath cannot make them.
const ZEROES: usize = 64 << 10;
static ZERO_PAGES: [u8; ZEROES] = [0; ZEROES];
/// A bio's segments have one pointer type for both directions; this one is only ever written to devices.
// SAFETY: static memory, and only Op::Write is given it (`Part::clone`), which reads.
static ZERO_SEGMENT: [Segment; 1] = [unsafe { Segment::new((&raw const ZERO_PAGES).cast_mut().cast(), ZEROES) }];

/// One part of a bio.
struct Part<'p> {
    placed: &'p Placed,
    offset: Sectors,
    len: Sectors,
    op: Op,
}

impl MappedDevice {
    /// Serves a bio by clones. Its own record waits, held, until they are done; if one is pushed back, the bio comes to
    /// [`hold_again`](Self::hold_again), and what was done of it is done again.
    #[inline(never)]
    pub(super) fn serve_in_parts(&self, cx: &Cx<'_>, mut bio: Bio, plan: &Plan) -> Option<Bio> {
        if let Err(status) = plan.check(&bio) {
            bio.end(status);
            return None;
        }
        self.counters.of(cx).arrived(&bio);
        if bio.flags().contains(OpFlags::HIPRI) {
            // Without room for it, the bio is not counted as polled for: that is all.
            // SAFETY: the device is held by whoever submitted the bio.
            unsafe { bio.push_frame(parts_done, std::ptr::from_ref(self).cast()) };
        }
        // SAFETY: as above.
        unsafe { bio.redirect(self) };
        bio.set_word(0);
        cx.hold(&mut bio);
        self.parts(cx, bio, plan)
    }

    /// Sends the parts from where the bio's word says, until all are out or the clones are.
    fn parts(&self, cx: &Cx<'_>, mut bio: Bio, plan: &Plan) -> Option<Bio> {
        let more = match bio.op() {
            Op::Flush => self.flush_parts(cx, &mut bio, plan),
            _ => self.range_parts(cx, &mut bio, plan),
        };
        if more {
            // The plan has to outlast the wait, and the wait counts as in flight.
            plan.parked.fetch_add(1, Ordering::AcqRel);
            self.parked.fetch_add(1, Ordering::AcqRel);
            // SAFETY: a plan with parked bios is not freed.
            unsafe { cx.park(plan.level, bio, resume_parts, std::ptr::from_ref(plan).cast()) };
        } else {
            cx.unhold(bio);
        }
        None
    }

    /// Returns whether parts are left for want of clones.
    fn range_parts(&self, cx: &Cx<'_>, bio: &mut Bio, plan: &Plan) -> bool {
        while bio.word() < bio.sectors().get() {
            let part = plan.part(bio);
            if part.op == Op::Discard && part.placed.limits.max_discard.is_zero() {
                bio.fail(Status::NotSupported);
            } else {
                let Some(clone) = part.clone(cx, bio, plan) else { return true };
                self.send(cx, clone, &part);
            }
            bio.set_word((part.offset + part.len).get());
        }
        false
    }

    fn send(&self, cx: &Cx<'_>, mut clone: Bio, part: &Part<'_>) {
        self.count(cx, &mut clone);
        let flags = clone.flags();
        // By the target's own limits: one that does FUA itself has to hear of it, whatever its neighbours are.
        if flags.contains(OpFlags::FUA) && !does_fua(&part.placed.limits) && part.op.is_write() {
            clone.set_flags(flags.without(OpFlags::FUA));
            // Above the count: the clone stays in flight, and so the table in its place, until the flushes are done.
            // SAFETY: the device is held by whoever submitted the parent.
            unsafe { clone.push_frame(written, std::ptr::from_ref(self).cast()) };
        }
        let at = clone.sector() - part.placed.begin;
        if let Some(clone) = answer(cx, part.placed, at, part.placed.target.map(cx, clone, at)) {
            cx.submit(clone);
        }
    }

    /// Counts a clone in flight until it has come back.
    fn count(&self, cx: &Cx<'_>, clone: &mut Bio) {
        let counters = self.counters.of(cx);
        counters.cloned();
        counters.begin();
        // SAFETY: the device is held by whoever submitted the parent.
        let pushed = unsafe { clone.push_frame(clone_done, std::ptr::from_ref(self).cast()) };
        debug_assert!(pushed, "a clone has room for three frames");
    }

    /// One flush for each device beneath, and for each target that wants them. Returns whether some are left.
    fn flush_parts(&self, cx: &Cx<'_>, bio: &mut Bio, plan: &Plan) -> bool {
        let devices = plan.table.flushed();
        let wanting: Vec<&Placed> = plan.table.placed().iter().filter(|p| p.capabilities.sees_flushes).collect();
        while (bio.word() as usize) < devices.len() + wanting.len() {
            let at = bio.word() as usize;
            // SAFETY: the bio is held by `serve_in_parts`, and an empty part lies within it.
            let clone = unsafe { cx.clone_part(bio, plan.level, Sectors::ZERO, Sectors::ZERO) };
            let Some(mut clone) = clone else { return true };
            // For the frame: whose flush has failed, if it does.
            clone.set_sector(flush_of(at));
            self.count(cx, &mut clone);
            clone.set_sector(Sector::ZERO);
            let next = match devices.get(at) {
                Some(dev) => {
                    // SAFETY: the table holds the device while the clone is in flight.
                    unsafe { clone.redirect(&**dev) };
                    Some(clone)
                }
                None => {
                    let placed = wanting[at - devices.len()];
                    answer(cx, placed, Sectors::ZERO, placed.target.map(cx, clone, Sectors::ZERO))
                }
            };
            if let Some(clone) = next {
                cx.submit(clone);
            }
            bio.set_word(at as u64 + 1);
        }
        false
    }
}

/// What stands for the sector of a flush where it is counted, as it has none: which of the devices beneath it is for,
/// from the top down, so that it is no sector of any write.
fn flush_of(device: usize) -> Sector {
    Sector::new(u64::MAX - device as u64)
}

impl MappedDevice {
    /// Tells the targets that a flush failed beneath them. It is in flight here, so that the table stays.
    #[cold]
    pub(super) fn note_flush_error(&self, sector: Sector, status: Status) {
        let table = self.table(TableSlot::Active);
        let Some(table) = table else { return };
        let device = usize::try_from(u64::MAX - sector.get()).ok().and_then(|at| table.flushed().get(at));
        let Some(dev) = device.map(|dev| dev.id()) else { return };
        let mut event = false;
        for placed in table.placed() {
            event |= placed.target.failed(Failed::Flush(dev), status);
        }
        if event {
            self.event();
        }
    }
}

impl Plan {
    /// The checks that [`takes`](Self::takes) makes for the common case, with the status for each.
    fn check(&self, bio: &Bio) -> Result<(), Status> {
        if bio.op().is_write() && self.read_only {
            return Err(Status::ReadOnly);
        }
        if (bio.sector().get() | bio.sectors().get()) & self.block_mask != 0 {
            return Err(Status::Invalid);
        }
        match bio.sector().checked_add(bio.sectors()) {
            Some(end) if end <= self.len.from_start() => Ok(()),
            _ => Err(Status::Io),
        }
    }

    /// The next part of a bio, as long as its target, chunk and limits allow.
    fn part(&self, bio: &Bio) -> Part<'_> {
        let offset = Sectors::new(bio.word());
        let sector = bio.sector() + offset;
        let placed = self.table.find(sector);
        let can = &placed.capabilities;
        let mut len = (bio.sectors() - offset).min(placed.end() - sector);
        let unsplit = bio.op() == Op::Discard && can.whole_discards;
        if let Some(chunk) = can.max_io_len.filter(|_| !unsplit) {
            let into = (sector - placed.begin).get() % chunk.get();
            len = len.min(chunk - Sectors::new(into));
        }
        let limits = &placed.limits;
        let (op, most) = match bio.op() {
            Op::Discard => (Op::Discard, limits.max_discard),
            Op::WriteZeroes if !limits.max_write_zeroes.is_zero() => (Op::WriteZeroes, limits.max_write_zeroes),
            Op::WriteZeroes => (Op::Write, limits.max_sectors.min(Sectors::in_bytes(ZEROES as u64))),
            op => (op, limits.max_sectors),
        };
        if !most.is_zero() {
            // Whole blocks, so that the next part begins on one.
            let block = self.block_mask + 1;
            len = len.min(Sectors::new((most.get() / block * block).max(block)));
        }
        Part { placed, offset, len, op }
    }
}

impl Part<'_> {
    fn clone(&self, cx: &Cx<'_>, bio: &mut Bio, plan: &Plan) -> Option<Bio> {
        if self.op == bio.op() {
            // SAFETY: the bio is held by `serve_in_parts`, and `Plan::part` keeps to it.
            unsafe { cx.clone_part(bio, plan.level, self.offset, self.len) }
        } else {
            let sector: Sector = bio.sector() + self.offset;
            // SAFETY: as above; `Plan::part` makes such parts writes of at most ZEROES bytes.
            unsafe { cx.clone_as(bio, plan.level, self.op, (sector, self.len), &ZERO_SEGMENT) }
        }
    }
}

/// Every clone of a polled bio has come back. One whose clones reached several queues is counted here, once; else its
/// one clone was ([`clone_done`]).
///
/// # Safety
/// As [`came_back`].
unsafe fn parts_done(cx: &Cx<'_>, bio: Bio, word: *const ()) -> Option<Bio> {
    // SAFETY: the contract.
    let md = unsafe { &*word.cast::<MappedDevice>() };
    if let Some(path) = bio.poll_path().filter(|path| *path != PollPath::Fast) {
        md.counters.polled(cx, path);
    }
    Some(bio)
}

/// A clone has come back.
///
/// # Safety
/// As [`came_back`].
unsafe fn clone_done(cx: &Cx<'_>, mut clone: Bio, word: *const ()) -> Option<Bio> {
    // SAFETY: the contract.
    let md = unsafe { &*word.cast::<MappedDevice>() };
    if clone.status() == Status::Requeue {
        if md.takes_back() {
            // With its last clone the whole bio comes back. It is not held yet when the device counts as still: then it
            // is sent to whatever the device has become.
            md.counters.of(cx).end();
            return Some(clone);
        }
        clone.clear_status();
        clone.fail(Status::Io);
    }
    let counts = clone.poll_path().is_none_or(|path| path == PollPath::Fast);
    // SAFETY: the contract.
    unsafe { came_back(cx, clone, word, counts) }
}

/// A write that asked for FUA has reached a device without: the clone goes on as a flush of each device beneath, in
/// turn. Which one is kept as the sector of the frame: a flush has none, and the bio's word belongs to the devices
/// beneath.
///
/// # Safety
/// As [`came_back`].
unsafe fn written(cx: &Cx<'_>, mut clone: Bio, word: *const ()) -> Option<Bio> {
    // SAFETY: the contract.
    let md = unsafe { &*word.cast::<MappedDevice>() };
    let table = md.table(TableSlot::Active);
    let next = match clone.op() {
        Op::Flush if !clone.status().is_ok() => {
            md.note_flush_error(flush_of(clone.sector().get() as usize), clone.status());
            return Some(clone);
        }
        Op::Flush => clone.sector() + Sectors::new(1),
        _ => Sector::ZERO,
    };
    let beneath = table.as_ref().and_then(|t| t.flushed().get(next.get() as usize));
    let Some(dev) = beneath.filter(|_| clone.status().is_ok()) else { return Some(clone) };
    clone.set_sector(next);
    // SAFETY: as at the first push; the frame that ran has left its place free.
    unsafe { clone.push_frame(written, word) };
    clone.become_flush();
    // SAFETY: the table holds the device while the clone is in flight.
    unsafe { clone.redirect(&**dev) };
    // Before the clone may complete: while it is in flight this is not the last hold on the table.
    drop(table);
    cx.submit(clone);
    None
}

/// Clones have come back: the split goes on.
///
/// # Safety
/// `word` is the plan that the bio was parked with.
unsafe fn resume_parts(cx: &Cx<'_>, bio: Bio, word: *const ()) -> Option<Bio> {
    // SAFETY: a plan with parked bios is not freed, and neither is its device.
    let plan = unsafe { &*word.cast::<Plan>() };
    // SAFETY: as above.
    let md = unsafe { &*plan.md };
    let next = md.parts(cx, bio, plan);
    md.parked.fetch_sub(1, Ordering::AcqRel);
    plan.parked.fetch_sub(1, Ordering::AcqRel);
    next
}
