//! The way of a bio through a running device: look up, count, shift, go on.

use super::back;
use super::path::Path;
use super::plan::{Plan, Route, To};
use super::{MappedDevice, Mode, lock};
use crate::counters::Counters;
use crate::table::TableSlot;
use crate::{Failed, Map};
use std::sync::atomic::Ordering;
use udm_base::{Sector, Sectors};
use udm_io::{Bio, BlockDevice, Cx, DirectAccess, FrameFn, Memory, Op, OpFlags, Status};

impl MappedDevice {
    /// Takes a bio. What most bios need on most devices is here, without a call: registers are saved by nobody.
    #[inline]
    pub(super) fn serve(&self, cx: &Cx<'_>, bio: Bio) -> Option<Bio> {
        let Some(plan) = self.plan.get(cx) else { return self.without_plan(cx, bio) };
        if bio.flags().asked_with(bio.op()) & plan.unusual != 0 {
            return self.serve_unusual(cx, bio, plan);
        }
        let Some(route) = plan.find_among_few(bio.sector()).filter(|_| plan.takes(&bio)) else {
            return self.serve_unusual(cx, bio, plan);
        };
        match route.to {
            _ if bio.end_sector() > route.end => self.serve_in_parts(cx, bio, plan),
            To::Clones => self.serve_in_parts(cx, bio, plan),
            To::Device(dev) if bio.has_frame() => Some(shift(cx, bio, route, dev)),
            To::Memory(memory) if route.chunk.is_none() => {
                // SAFETY: the plan keeps the table of the target whose memory it is.
                let memory = unsafe { &*memory };
                let at = route.start + (bio.sector() - route.begin);
                // SAFETY: the counters are the device's, or of a path that the plan owns.
                serve_at_once(cx, bio, unsafe { &*route.counters }.of(cx), memory, at)
            }
            _ => self.go(cx, bio, route, plan),
        }
    }

    /// A bio that asks for something that the plan does not do along the way, or whose route is to be searched for.
    #[inline(never)]
    fn serve_unusual(&self, cx: &Cx<'_>, mut bio: Bio, plan: &Plan) -> Option<Bio> {
        let flags = bio.flags();
        if flags.contains(OpFlags::HIPRI) && !plan.poll {
            // It completes by interrupt, as in the kernel (`submit_bio_noacct`, `block/blk-core.c`, 6.12).
            bio.set_flags(flags.without(OpFlags::HIPRI));
        }
        // To a read the other flags say nothing.
        let usual = bio.op() == Op::Read || bio.flags().asked_with(bio.op()) & plan.unusual == 0;
        match plan.route_of(&bio).filter(|_| usual) {
            Some(route) => self.go(cx, bio, route, plan),
            None => self.serve_in_parts(cx, bio, plan),
        }
    }

    /// Serves a bio that lies within one route, without a clone if it lies within its chunk too.
    #[inline(never)]
    fn go(&self, cx: &Cx<'_>, mut bio: Bio, route: &Route, plan: &Plan) -> Option<Bio> {
        let at = route.start + (bio.sector() - route.begin);
        if !route.has_whole(at, bio.sectors()) {
            return self.serve_in_parts(cx, bio, plan);
        }
        let (route, at) = match route.to {
            // SAFETY: the plan owns its legs.
            To::Stripes(legs) => unsafe { &*legs }.find(at - Sector::ZERO),
            _ => (route, at),
        };
        // SAFETY: the counters are this device's, or of a path that the plan owns.
        let counters = unsafe { &*route.counters }.of(cx);
        if let To::Memory(memory) = route.to {
            // SAFETY: the plan keeps the table of the target whose memory it is.
            return serve_at_once(cx, bio, counters, unsafe { &*memory }, at);
        }
        if let To::Sync(target) = route.to {
            counters.arrived(&bio);
            // Ends within the section, so that a suspension which waits for sections has waited for it.
            // SAFETY: the plan keeps the table of the target.
            let map = unsafe { &*target }.map(cx, bio, at - Sector::ZERO);
            if let Map::Ended(bio, status) = &map
                && !status.is_ok()
                // SAFETY: null, or a path of the plan.
                && let Some(path) = unsafe { route.path.as_ref() }
            {
                path.note_error(bio.sector(), *status);
            }
            return Self::mapped(cx, map);
        }
        match route.to {
            To::Device(dev) if bio.has_frame() => Some(shift_to(counters, bio, route.done, dev, at)),
            // It may push a frame of its own.
            To::Target(target) if bio.frames_left() >= 2 => {
                enter(counters, &mut bio, route.done);
                // SAFETY: the plan keeps the table of the target.
                let map = unsafe { &*target }.map(cx, bio, at - Sector::ZERO);
                if matches!(map, Map::Remapped(..)) {
                    counters.remapped();
                }
                Self::mapped(cx, map)
            }
            To::Placed(placed) if bio.frames_left() >= 2 + back::FRAMES => {
                enter(counters, &mut bio, route.done);
                let at = at - Sector::ZERO;
                // SAFETY: the plan keeps the table of the target.
                let placed = unsafe { &*placed };
                let map = placed.target.map(cx, bio, at);
                if matches!(map, Map::Remapped(..) | Map::WithEndIo(..)) {
                    counters.remapped();
                }
                back::answer(cx, placed, at, map)
            }
            To::Memory(_) | To::Sync(_) | To::Stripes(_) => unreachable!("served above, and no leg"),
            To::Device(_) | To::Target(_) | To::Placed(_) | To::Clones => self.serve_in_parts(cx, bio, plan),
        }
    }

    /// Does what a target answered.
    #[inline(always)]
    pub(super) fn mapped(cx: &Cx<'_>, map: Map<'_>) -> Option<Bio> {
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
            Map::WithEndIo(bio, ..) | Map::Delayed(bio, ..) | Map::Work(bio, _) => undeclared(bio),
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

    /// Tells the target that a bio at `sector` failed beneath it. The bio is still in flight here, so that the table
    /// stays.
    #[cold]
    fn note_error(&self, sector: Sector, status: Status) {
        let Some(table) = self.table(TableSlot::Active).filter(|t| sector < t.sectors().from_start()) else { return };
        let placed = table.find(sector);
        if placed.target.failed(Failed::At(sector - placed.begin), status) {
            self.event();
        }
    }

    /// Takes back a bio that came home with Requeue: held if that was asked for, else failed.
    #[cold]
    fn requeued(&self, mut bio: Bio) -> Option<Bio> {
        if !self.takes_back() {
            bio.clear_status();
            bio.fail(Status::Io);
            return Some(bio);
        }
        // SAFETY: the device is held by whoever submitted the bio.
        unsafe { bio.redirect(self) };
        self.hold_again(bio);
        None
    }

    /// Whether targets may push bios back: the device is being suspended, and that was asked for.
    pub(super) fn takes_back(&self) -> bool {
        self.noflush.load(Ordering::Acquire)
    }

    /// Holds a bio that was pushed back, and is for this device, until the resume. If that has been, it goes on.
    pub(super) fn hold_again(&self, mut bio: Bio) {
        bio.clear_status();
        // A frame that counts it as polled for is pushed once; and what it is polled for there is not here.
        bio.set_flags(bio.flags().without(OpFlags::HIPRI));
        let mut held = lock(&self.held);
        if held.mode == Mode::Suspended {
            held.bios.push_back(bio);
        } else {
            drop(held);
            bio.resubmit();
        }
    }
}

/// A target takes bios back without saying so.
#[cold]
fn undeclared(bio: Bio) -> Option<Bio> {
    bio.end(Status::Io);
    debug_assert!(false, "a target that takes bios back has to say so: NewTarget::takes_back");
    None
}

/// Serves a read or write from memory, where one is served by nothing else: so that the copy is in this function, and
/// the caller has no registers to save for it.
#[inline(never)]
fn serve_at_once(cx: &Cx<'_>, bio: Bio, counters: &Counters, memory: &Memory, at: Sector) -> Option<Bio> {
    counters.arrived(&bio);
    let status = memory.serve_at(&bio, at);
    cx.end(bio, status);
    None
}

/// Sends a read or write on to the device of a route. The bio has room for a frame.
#[inline(always)]
fn shift(cx: &Cx<'_>, bio: Bio, route: &Route, dev: *const dyn BlockDevice) -> Bio {
    let at = route.start + (bio.sector() - route.begin);
    // SAFETY: the counters are the device's, or of a path that the plan owns.
    let counters = unsafe { &*route.counters }.of(cx);
    shift_to(counters, bio, route.done, dev, at)
}

/// Counts a bio that goes to a target which may remap it. It has room for a frame.
#[inline(always)]
fn enter(counters: &Counters, bio: &mut Bio, done: (FrameFn, *const ())) {
    // SAFETY: the device is held by whoever submitted the bio, and a path stays while it has bios in flight.
    unsafe { bio.push_frame(done.0, done.1) };
    counters.arrived(bio);
    counters.begin();
}

#[inline(always)]
fn shift_to(
    counters: &Counters,
    mut bio: Bio,
    done: (FrameFn, *const ()),
    dev: *const dyn BlockDevice,
    at: Sector,
) -> Bio {
    // SAFETY: the device is held by whoever submitted the bio, and a path stays while it has bios in flight.
    unsafe { bio.push_frame(done.0, done.1) };
    counters.shifted(&bio);
    bio.set_sector(at);
    // SAFETY: the table holds the device, and the count of bios in flight holds the table.
    unsafe { bio.redirect(&*dev) };
    bio
}

impl Route {
    /// Whether a range of the target, which begins within the route, lies in one chunk.
    #[inline]
    fn has_whole(&self, at: Sector, sectors: Sectors) -> bool {
        self.chunk.is_none_or(|chunk| {
            let (_, into) = chunk.split(at.get());
            into + sectors.get() <= chunk.get()
        })
    }
}

impl Plan {
    /// Whether it is of whole blocks, and of no more than is allowed at once.
    #[inline]
    fn takes(&self, bio: &Bio) -> bool {
        let (sector, sectors) = (bio.sector().get(), bio.sectors());
        sectors <= self.max_sectors && !sectors.is_zero() && (sector | sectors.get()) & self.block_mask == 0
    }

    /// The route that a read or write which the plan takes lies within.
    fn route_of(&self, bio: &Bio) -> Option<&Route> {
        self.find(bio.sector()).filter(|route| self.takes(bio) && bio.end_sector() <= route.end)
    }
}

impl Plan {
    /// The memory that a range is, if it is one route's.
    pub(super) fn direct_access<'a>(
        &'a self,
        cx: &'a Cx<'_>,
        op: Op,
        sector: Sector,
        sectors: Sectors,
    ) -> Option<DirectAccess<'a>> {
        if sectors.is_zero() || (sector.get() | sectors.get()) & self.block_mask != 0 {
            return None;
        }
        if op.is_write() && self.read_only {
            return None;
        }
        let route = self.find(sector)?;
        let end = sector.checked_add(sectors)?;
        let To::Memory(memory) = route.to else { return None };
        if sector < route.begin || end > route.end {
            return None;
        }
        // SAFETY: the plan keeps the table of the target whose memory it is, and the section keeps the plan.
        let memory = unsafe { &*memory };
        // SAFETY: the counters are this device's, or of a path that the plan owns.
        let counters = unsafe { &*route.counters }.of(cx);
        Some(memory.direct_access(op, route.start + (sector - route.begin), sectors)?.accounted_in(counters))
    }
}

/// A bio that passed one device has come back.
///
/// # Safety
/// As [`came_back`].
pub(super) unsafe fn own_done(cx: &Cx<'_>, bio: Bio, word: *const ()) -> Option<Bio> {
    if !bio.status().is_ok() {
        // SAFETY: the contract.
        return unsafe { came_back_failed(cx, bio, word) };
    }
    // SAFETY: the contract.
    unsafe { &*word.cast::<MappedDevice>() }.counters.left(cx, &bio);
    Some(bio)
}

/// A bio that passed one device has come back with an error.
///
/// # Safety
/// As [`came_back`].
#[cold]
unsafe fn came_back_failed(cx: &Cx<'_>, bio: Bio, word: *const ()) -> Option<Bio> {
    // SAFETY: the contract.
    unsafe { came_back(cx, bio, word, true) }
}

/// A bio, or a clone of one, that passed one device has come back. `counts`: whether it is counted as polled for, if it
/// was.
///
/// # Safety
/// `word` is the device, which is held by whoever submitted the bio.
#[inline]
pub(super) unsafe fn came_back(cx: &Cx<'_>, bio: Bio, word: *const (), counts: bool) -> Option<Bio> {
    // SAFETY: the contract.
    let md = unsafe { &*word.cast::<MappedDevice>() };
    if bio.status() == Status::Requeue {
        let back = md.requeued(bio);
        md.counters.of(cx).end();
        return back;
    }
    if !bio.status().is_ok() {
        match bio.op() {
            // Of one that stood for FUA it has been told: its sector is the write's.
            Op::Flush => md.note_flush_error(bio.sector(), bio.status()),
            _ => md.note_error(bio.sector(), bio.status()),
        }
    }
    if counts {
        md.counters.left(cx, &bio);
    } else {
        md.counters.of(cx).end();
    }
    Some(bio)
}

/// A bio that passed a compiled path has come back.
///
/// # Safety
/// `word` is the path, which stays while it has bios in flight.
pub(super) unsafe fn path_done(cx: &Cx<'_>, bio: Bio, word: *const ()) -> Option<Bio> {
    // SAFETY: the contract.
    let path = unsafe { &*word.cast::<Path>() };
    if !bio.status().is_ok() {
        return path_failed(cx, bio, path);
    }
    path.counters.left(cx, &bio);
    Some(bio)
}

#[cold]
fn path_failed(cx: &Cx<'_>, mut bio: Bio, path: &Path) -> Option<Bio> {
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
    path.note_error(bio.sector(), bio.status());
    path.counters.left(cx, &bio);
    Some(bio)
}
