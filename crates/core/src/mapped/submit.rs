//! The way of a bio through a running device: look up, count, shift, go on.

use super::path::Path;
use super::plan::{Extent, Plan, To};
use super::{MappedDevice, Mode, lock};
use crate::Map;
use crate::table::TableSlot;
use std::sync::atomic::Ordering;
use udm_base::{Sector, Sectors};
use udm_io::{Bio, Cx, Lent, Op, OpFlags, Status};

impl MappedDevice {
    #[inline]
    pub(super) fn serve(&self, cx: &Cx<'_>, mut bio: Bio) -> Option<Bio> {
        let Some(plan) = self.plan.get(cx) else { return self.without_plan(cx, bio) };
        let flags = bio.flags();
        if flags.contains(OpFlags::HIPRI) && !plan.poll {
            // It completes by interrupt, as in the kernel (`submit_bio_noacct`, `block/blk-core.c`, 6.12).
            bio.set_flags(flags.without(OpFlags::HIPRI));
        }
        match plan.straight(&bio) {
            Some(extent) => self.go(cx, bio, extent, plan),
            None => self.serve_in_parts(cx, bio, plan),
        }
    }

    /// Serves a bio that lies within one extent, without a clone.
    #[inline]
    fn go(&self, cx: &Cx<'_>, mut bio: Bio, extent: &Extent, plan: &Plan) -> Option<Bio> {
        let at = extent.start + (bio.sector() - extent.begin);
        let (extent, at) = match extent.to {
            // SAFETY: the plan owns its legs.
            To::Stripes(legs) => unsafe { &*legs }.find(at - Sector::ZERO),
            _ => (extent, at),
        };
        // SAFETY: the counters are this device's, or of a path that the plan owns.
        let counters = unsafe { &*extent.counters }.of(cx);
        if let To::Memory(memory) = extent.to {
            counters.arrived(&bio);
            // SAFETY: the plan keeps the table of the target whose memory it is.
            let status = unsafe { &*memory }.serve_at(&bio, at);
            cx.end(bio, status);
            return None;
        }
        if let To::Sync(target) = extent.to {
            counters.arrived(&bio);
            // Ends within the section, so that a suspension which waits for sections has waited for it.
            // SAFETY: the plan keeps the table of the target.
            let map = unsafe { &*target }.map(cx, bio, at - Sector::ZERO);
            if let Map::Ended(bio, status) = &map
                && !status.is_ok()
                // SAFETY: null, or a path of the plan.
                && let Some(path) = unsafe { extent.path.as_ref() }
            {
                path.note_error(bio.sector(), *status);
            }
            return self.mapped(cx, map);
        }
        // A target that is handed the bio itself may push a frame of its own.
        if let To::Target(_) = extent.to
            && bio.frames_left() < 2
        {
            return self.serve_in_parts(cx, bio, plan);
        }
        let pushed = match extent.path.is_null() {
            // SAFETY: the device is held by whoever submitted the bio.
            true => unsafe { bio.push_frame(own_done, std::ptr::from_ref(self).cast()) },
            // SAFETY: a path stays while it has bios in flight.
            false => unsafe { bio.push_frame(path_done, extent.path.cast()) },
        };
        if !pushed {
            return self.serve_in_parts(cx, bio, plan);
        }
        counters.arrived(&bio);
        counters.begin();
        match extent.to {
            To::Device(dev) => {
                counters.remapped();
                bio.set_sector(at);
                // SAFETY: the table holds the device, and the count of bios in flight holds the table.
                unsafe { bio.redirect(&*dev) };
                Some(bio)
            }
            To::Target(target) => {
                // SAFETY: as above.
                let map = unsafe { &*target }.map(cx, bio, at - Sector::ZERO);
                if matches!(map, Map::Remapped(..)) {
                    counters.remapped();
                }
                self.mapped(cx, map)
            }
            To::Memory(_) | To::Sync(_) | To::Stripes(_) | To::Clones => {
                unreachable!("served above, no leg, and never straight")
            }
        }
    }

    /// Does what a target answered.
    #[inline(always)]
    pub(super) fn mapped(&self, cx: &Cx<'_>, map: Map<'_>) -> Option<Bio> {
        match map {
            Map::Remapped(mut bio, dev) => {
                // SAFETY: the target's table holds the device while the bio is in flight.
                unsafe { bio.redirect(dev) };
                Some(bio)
            }
            Map::Kept => None,
            Map::Ended(bio, status) => {
                cx.end(bio, status);
                None
            }
            Map::Requeue(bio) => {
                bio.end(Status::Requeue);
                None
            }
        }
    }

    /// No plan: held back, refused, or a race that was lost.
    #[cold]
    fn without_plan(&self, _: &Cx<'_>, bio: Bio) -> Option<Bio> {
        let mut held = lock(&self.held);
        match held.mode {
            Mode::Suspended => held.bios.push_back(bio),
            Mode::Running => return Some(bio),
            Mode::Empty | Mode::Removed => {
                drop(held);
                bio.end(Status::Io);
            }
        }
        None
    }

    /// Tells the target that a bio at `sector` failed beneath it. The bio is still in flight here, so that the table stays.
    #[cold]
    fn note_error(&self, sector: Sector, status: Status) {
        let Some(table) = self.table(TableSlot::Active).filter(|t| sector < t.sectors().from_start()) else { return };
        let placed = table.find(sector);
        if placed.target.failed(sector - placed.begin, status) {
            self.event();
        }
    }

    /// Takes back a bio that came home with Requeue: held if that was asked for, else failed.
    #[cold]
    fn requeued(&self, mut bio: Bio) -> Option<Bio> {
        if !self.noflush.load(Ordering::Acquire) {
            bio.clear_status();
            bio.fail(Status::Io);
            return Some(bio);
        }
        bio.clear_status();
        // SAFETY: the device is held by whoever submitted the bio.
        unsafe { bio.redirect(self) };
        let mut held = lock(&self.held);
        if held.mode == Mode::Suspended {
            held.bios.push_back(bio);
        } else {
            drop(held);
            bio.resubmit();
        }
        None
    }
}

impl Plan {
    /// The extent that serves a bio as it is, if one does: a read or write of whole blocks, within the extent and its chunk,
    /// allowed, and with nothing to be done after it.
    #[inline]
    fn straight(&self, bio: &Bio) -> Option<&Extent> {
        let (op, sector, sectors) = (bio.op(), bio.sector(), bio.sectors());
        if !op.has_payload() || sectors > self.max_sectors || sectors.is_zero() {
            return None;
        }
        if (sector.get() | sectors.get()) & self.block_mask != 0 {
            return None;
        }
        if op.is_write() && (self.read_only || (!self.fua && bio.flags().contains(OpFlags::FUA))) {
            return None;
        }
        let extent = self.find(sector)?;
        let end = bio.end_sector();
        if end > extent.end || matches!(extent.to, To::Clones) {
            return None;
        }
        if let Some(chunk) = extent.chunk {
            let (_, into) = chunk.split((extent.start + (sector - extent.begin)).get());
            if into + sectors.get() > chunk.get() {
                return None;
            }
        }
        Some(extent)
    }
}

impl Plan {
    /// The memory that a range is, if it is one extent's.
    pub(super) fn lend<'a>(&'a self, cx: &'a Cx<'_>, op: Op, sector: Sector, sectors: Sectors) -> Option<Lent<'a>> {
        if sectors.is_zero() || (sector.get() | sectors.get()) & self.block_mask != 0 {
            return None;
        }
        if op.is_write() && self.read_only {
            return None;
        }
        let extent = self.find(sector)?;
        let end = sector.checked_add(sectors)?;
        let To::Memory(memory) = extent.to else { return None };
        if sector < extent.begin || end > extent.end {
            return None;
        }
        // SAFETY: the plan keeps the table of the target whose memory it is, and the section keeps the plan.
        let memory = unsafe { &*memory };
        // SAFETY: the counters are this device's, or of a path that the plan owns.
        let counters = unsafe { &*extent.counters }.of(cx);
        Some(memory.lend(op, extent.start + (sector - extent.begin), sectors)?.noted_in(counters))
    }
}

/// A bio that passed one device has come back.
///
/// # Safety
/// As [`came_back`].
unsafe fn own_done(cx: &Cx<'_>, bio: Bio, word: *const ()) -> Option<Bio> {
    // SAFETY: the contract.
    unsafe { came_back(cx, bio, word, true) }
}

/// A bio, or a clone of one, that passed one device has come back. `counts`: whether it is counted as polled for, if it was.
///
/// # Safety
/// `word` is the device, which is held by whoever submitted the bio.
#[inline(always)]
pub(super) unsafe fn came_back(cx: &Cx<'_>, bio: Bio, word: *const (), counts: bool) -> Option<Bio> {
    // SAFETY: the contract.
    let md = unsafe { &*word.cast::<MappedDevice>() };
    if bio.status() == Status::Requeue {
        let back = md.requeued(bio);
        md.counters.of(cx).end();
        return back;
    }
    if !bio.status().is_ok() {
        md.note_error(bio.sector(), bio.status());
    }
    if let Some(path) = bio.poll_path().filter(|_| counts) {
        md.counters.polled(cx, path);
    }
    md.counters.of(cx).end();
    Some(bio)
}

/// A bio that passed a compiled path has come back.
///
/// # Safety
/// `word` is the path, which stays while it has bios in flight.
unsafe fn path_done(cx: &Cx<'_>, mut bio: Bio, word: *const ()) -> Option<Bio> {
    // SAFETY: the contract.
    let path = unsafe { &*word.cast::<Path>() };
    if bio.status() == Status::Requeue {
        bio.clear_status();
        if let Some(top) = path.top().filter(|_| path.wants_back()) {
            // From the top again, where no path leads through a suspended device: that one will hold the bio.
            // SAFETY: the device is held by whoever submitted the bio.
            unsafe { bio.redirect(&*top) };
            bio.resubmit();
            path.counters.of(cx).end();
            return None;
        }
        bio.fail(Status::Io);
    }
    if !bio.status().is_ok() {
        path.note_error(bio.sector(), bio.status());
    }
    if let Some(polled) = bio.poll_path() {
        path.counters.polled(cx, polled);
    }
    path.counters.of(cx).end();
    Some(bio)
}
