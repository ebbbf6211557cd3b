//! Bios that come back to their target: at home again, at a later time, or when work on them is done.
//!
//! Such a bio has two frames more: the target's context, along with where the bio lies in the target, and above it one
//! that calls the target. Both are gone when it is called, so that it may send the bio on in the same way again.

use super::MappedDevice;
use crate::table::{Placed, Table};
use crate::{Map, Until};
use udm_base::{Sector, Sectors};
use udm_io::{Bio, BlockDevice, Cx, Domain, FrameFn, Status};

/// Frames that a bio needs room for, beside the one that counts it.
pub(super) const FRAMES: usize = 2;

/// Does what a target answered that may take bios back; `at` is where the bio lies in it, and the bio has room for
/// [`FRAMES`]. Gives a bio that goes on to the device that it is for.
pub(super) fn answer(cx: &Cx<'_>, placed: &Placed, at: Sectors, map: Map<'_>) -> Option<Bio> {
    match map {
        Map::WithEndIo(bio, dev, context) => Some(watch(bio, placed, at, dev, context)),
        Map::Delayed(bio, Until::At(time), context) => {
            let bio = waiting(bio, placed, at, context);
            // In the section that would set the timer: a suspension which comes later finds it.
            match placed.is_draining() {
                true => cx.end(bio, Status::Ok),
                false => cx.at_for(placed.key(), time, bio, |cx, bio| cx.end(bio, Status::Ok)),
            }
            None
        }
        Map::Delayed(bio, Until::Released(held, ticket), context) => {
            if let Some(bio) = held.keep(waiting(bio, placed, at, context), ticket, context) {
                cx.end(bio, Status::Ok);
            }
            None
        }
        Map::Work(bio, context) => {
            let bio = with_context(bio, at, context);
            // SAFETY: the bio is counted in flight until it has come home, and so its table stays.
            unsafe { placed.domain.queue_cpu_work(bio, work, std::ptr::from_ref(placed).cast()) };
            None
        }
        map => MappedDevice::mapped(cx, map),
    }
}

/// A bio that goes to a device beneath, and then to its target.
fn watch(bio: Bio, placed: &Placed, at: Sectors, dev: &dyn BlockDevice, context: u64) -> Bio {
    let beneath = bio.sector();
    let mut bio = with_context(bio, at, context);
    bio.set_sector(beneath);
    let mut bio = calling(came_home, bio, placed);
    // SAFETY: the target's table holds the device while the bio is in flight.
    unsafe { bio.redirect(dev) };
    bio
}

/// A bio that goes on with its target when it is ended.
fn waiting(bio: Bio, placed: &Placed, at: Sectors, context: u64) -> Bio {
    calling(waited, with_context(bio, at, context), placed)
}

/// A bio with the target's context on it, along with where it lies in the target.
fn with_context(mut bio: Bio, at: Sectors, context: u64) -> Bio {
    bio.set_sector(at.from_start());
    let pushed = bio.push_context(context);
    debug_assert!(pushed, "there is room for two frames");
    bio
}

/// A bio with a context that calls its target.
fn calling(func: FrameFn, mut bio: Bio, placed: &Placed) -> Bio {
    // SAFETY: the bio is counted in flight until it has come home, and so its table stays; under the frame is the
    // context.
    let pushed = unsafe { bio.push_frame(func, std::ptr::from_ref(placed).cast()) };
    debug_assert!(pushed, "there is room for two frames");
    bio
}

/// Takes the context that lies under the frame which ran. Gives it with where the bio lies in the target; the bio keeps
/// its sector.
///
/// # Safety
/// The uppermost frame is a context.
unsafe fn context_of(bio: &mut Bio) -> (u64, Sectors) {
    let sector = bio.sector();
    // SAFETY: the contract.
    let context = unsafe { bio.take_context() };
    let at = bio.sector() - Sector::ZERO;
    bio.set_sector(sector);
    (context, at)
}

/// A bio that went to a device beneath has come home.
///
/// # Safety
/// `word` is the target's place in a table, which stays while the bio is in flight; under this frame there is a
/// context.
unsafe fn came_home(cx: &Cx<'_>, mut bio: Bio, word: *const ()) -> Option<Bio> {
    // SAFETY: the contract.
    let placed = unsafe { &*word.cast::<Placed>() };
    // SAFETY: the contract.
    let (context, at) = unsafe { context_of(&mut bio) };
    goes_on(cx, placed, at, placed.target.end_io(cx, bio, at, context))
}

/// A bio was kept long enough.
///
/// # Safety
/// As [`came_home`].
unsafe fn waited(cx: &Cx<'_>, mut bio: Bio, word: *const ()) -> Option<Bio> {
    // SAFETY: the contract.
    let placed = unsafe { &*word.cast::<Placed>() };
    // SAFETY: the contract.
    let (context, at) = unsafe { context_of(&mut bio) };
    if !bio.status().is_ok() {
        // Its channel has gone.
        return Some(bio);
    }
    match placed.target.resume_io(cx, bio, at, context) {
        Map::Delayed(bio, Until::At(_), _) if placed.is_draining() => goes_on(cx, placed, at, Map::Requeue(bio)),
        map => goes_on(cx, placed, at, map),
    }
}

/// Works on a bio, outside of channels, and sends it home.
///
/// # Safety
/// `word` is the target's place, as in [`came_home`]; the uppermost frame is a context.
unsafe fn work(mut bio: Bio, word: *const ()) {
    // SAFETY: the contract.
    let placed = unsafe { &*word.cast::<Placed>() };
    // SAFETY: the contract.
    let (context, at) = unsafe { context_of(&mut bio) };
    let context = placed.target.work(&mut bio, at, context);
    waiting(bio, placed, at, context).end(Status::Ok);
}

/// Does what a target answered to a bio that came back. One that is done goes on to the frame beneath.
fn goes_on(cx: &Cx<'_>, placed: &Placed, at: Sectors, map: Map<'_>) -> Option<Bio> {
    let map = match map {
        Map::Ended(bio, status) => return Some(with_status(bio, status)),
        Map::Requeue(bio) => return Some(with_status(bio, Status::Requeue)),
        Map::Kept => return None,
        Map::Remapped(bio, dev) => Map::Remapped(with_status(bio, Status::Ok), dev),
        Map::WithEndIo(bio, dev, context) => Map::WithEndIo(with_status(bio, Status::Ok), dev, context),
        Map::Delayed(bio, until, context) => Map::Delayed(with_status(bio, Status::Ok), until, context),
        Map::Work(bio, context) => Map::Work(with_status(bio, Status::Ok), context),
    };
    if let Some(bio) = answer(cx, placed, at, map) {
        cx.submit(bio);
    }
    None
}

fn with_status(mut bio: Bio, status: Status) -> Bio {
    bio.set_status(status);
    bio
}

impl Table {
    /// From here on no bio is kept to a time, and those that are go on. Not from inside a channel.
    pub(super) fn drain_delayed(&self, domain: &Domain) {
        for placed in self.placed().iter().filter(|placed| placed.capabilities.takes_back) {
            placed.set_draining(true);
            domain.expire(placed.key());
        }
    }

    /// Bios may be kept again.
    pub(super) fn allow_delays(&self) {
        self.placed().iter().for_each(|placed| placed.set_draining(false));
    }
}
