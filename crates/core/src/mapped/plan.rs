//! A plan: what a running device does with a bio, looked up by sector.
//!
//! A plan is made from a table. Targets that only shift addresses are followed down, through the mapped devices
//! beneath, as far as each runs, may be compiled and refuses nothing that its user would not refuse; so a stack of such
//! targets costs one step, and still counts for each of its devices.

use super::MappedDevice;
use super::path::Path;
use super::submit::{own_done, path_done};
use crate::counters::PerChannel;
use crate::table::{Placed, Table};
use crate::{Target, TargetDevice};
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Weak};
use udm_base::{Divisor, Sector, Sectors, Stripes};
use udm_io::{BlockDevice, FrameFn, Limits, Memory, Op, OpFlags};

/// At most this many routes come from one table; past it targets are left as they are.
const ROUTES_MAX: usize = 4096;

/// Routes that are found without a search.
const FEW: usize = 4;

/// Where a route's bios go.
#[derive(Clone, Copy)]
pub(super) enum To {
    /// To a device, their sector shifted.
    Device(*const dyn BlockDevice),
    /// To memory.
    Memory(*const Memory),
    /// To a target that ends each at once.
    Sync(*const dyn Target),
    /// To a target that may remap the submitter's own bio.
    Target(*const dyn Target),
    /// To a target that may, and that takes bios back.
    Placed(*const Placed),
    /// To one of several, by arithmetic.
    Stripes(*const Legs),
    /// By way of clones.
    Clones,
}

/// The ways of a striped route. Each leg is a route whose addresses count from the leg's start, and which leads to a
/// device or to a target that ends each bio at once.
pub(super) struct Legs {
    stripes: Stripes,
    legs: Box<[Route]>,
}

impl Legs {
    /// The leg of a bio that begins `at` sectors into the striped target, and where on the leg's device or target.
    #[inline]
    pub(super) fn find(&self, at: Sectors) -> (&Route, Sector) {
        let (leg, into) = self.stripes.locate(at);
        let leg = &self.legs[leg];
        (leg, leg.start + into)
    }
}

/// A stretch of the device.
pub(super) struct Route {
    pub(super) begin: Sector,
    pub(super) end: Sector,
    /// Where `begin` lies on the device, or in the target.
    pub(super) start: Sector,
    pub(super) to: To,
    /// A bio must not cross a multiple of this in the target.
    pub(super) chunk: Option<Divisor>,
    /// Of the path, or of the device itself.
    pub(super) counters: *const PerChannel,
    /// Null where the counters are the device's own.
    pub(super) path: *const Path,
    /// The frame of a bio that goes on from here, and its word: the path, or the device.
    pub(super) done: (FrameFn, *const ()),
}

/// How a running device serves bios. Immutable.
pub(crate) struct Plan {
    pub(super) md: *const MappedDevice,
    pub(super) table: Arc<Table>,
    pub(super) routes: Box<[Route]>,
    /// Where those end, if they are few.
    ends: [Sector; FEW - 1],
    pub(super) len: Sectors,
    pub(super) max_sectors: Sectors,
    /// Sectors of a logical block, less one.
    pub(super) block_mask: u64,
    /// What a bio must not ask for to be served as it is ([`OpFlags::asked_with`]): no payload, what is refused, what
    /// is to be emulated, to be polled for where that cannot be.
    pub(super) unusual: u16,
    pub(super) read_only: bool,
    /// Bios may be polled for.
    pub(super) poll: bool,
    pub(super) level: usize,
    pub(super) paths: Vec<Arc<Path>>,
    /// What striped routes point at.
    #[expect(clippy::vec_box, reason = "routes point at their legs")]
    _legs: Vec<Box<Legs>>,
    /// Bios that wait for clones and will come back to this plan.
    pub(super) parked: AtomicUsize,
}

// SAFETY: the raw pointers lead to what `table` and `paths` own, and to the device that owns the plan.
unsafe impl Send for Plan {}
// SAFETY: as above; all of it is read-only or atomic.
unsafe impl Sync for Plan {}

impl Plan {
    /// The plan of `md` with `table`. Takes no lock but those of the devices beneath, briefly.
    pub(super) fn build(md: &Arc<MappedDevice>, table: Arc<Table>) -> Self {
        let options = md.options();
        let mut routes = Vec::new();
        let (mut paths, mut legs): (Vec<Arc<Path>>, _) = (Vec::new(), Vec::new());
        for placed in table.placed() {
            let mut walk = Walk { top: md, runs: Vec::new(), tables: Vec::new(), out: Vec::new() };
            if options.clone_always || !(options.compile && walk.follow_top(&table, placed)) {
                walk.out.clear();
                walk.out.push(own(md, placed, options.clone_always));
            }
            for found in walk.out {
                paths.extend(found.paths);
                legs.extend(found.legs);
                routes.push(found.route);
            }
        }
        let limits = table.limits();
        let poll = options.io_poll && table.can_poll();
        if poll {
            std::iter::once(md.counters()).chain(paths.iter().map(|p| &p.counters)).for_each(PerChannel::expect_polls);
        }
        Self {
            md: Arc::as_ptr(md),
            ends: ends(&routes),
            routes: routes.into(),
            len: table.sectors(),
            max_sectors: limits.max_sectors,
            block_mask: u64::from(limits.logical_block_size) / 512 - 1,
            unusual: unusual(table.read_only(), does_fua(&limits), poll),
            read_only: table.read_only(),
            poll,
            level: table.level(),
            paths,
            _legs: legs,
            parked: AtomicUsize::new(0),
            table,
        }
    }

    /// The route of a sector that lies within the device.
    #[inline]
    pub(super) fn find(&self, sector: Sector) -> Option<&Route> {
        match self.find_among_few(sector) {
            None => self.routes.get(self.routes.partition_point(|e| e.end <= sector)),
            few => few,
        }
    }

    /// The same for a plan of few routes; `None` where there are more. Its comparisons do not wait for each other, as
    /// those of a search do.
    #[inline]
    pub(super) fn find_among_few(&self, sector: Sector) -> Option<&Route> {
        match &*self.routes {
            [one] => Some(one),
            more if more.len() <= FEW => {
                more.get(self.ends.iter().map(|end| usize::from(*end <= sector)).sum::<usize>())
            }
            _ => None,
        }
    }
}

/// The ends of all routes but the last, of which there are few; past them what no sector reaches.
fn ends(routes: &[Route]) -> [Sector; FEW - 1] {
    let inner = routes.len().saturating_sub(1);
    std::array::from_fn(|i| routes.get(i).filter(|_| i < inner).map_or(Sector::new(u64::MAX), |e| e.end))
}

/// The bits of [`OpFlags::asked_with`] that keep a bio from being served as it is.
fn unusual(read_only: bool, does_fua: bool, polls: bool) -> u16 {
    // Reads and writes are 0 and 1, so that any other bit says that there is no payload.
    const { assert!(Op::Read as u8 == 0 && Op::Write as u8 == 1, "else the mask means something else") };
    let ops = if read_only { u8::MAX } else { !(Op::Write as u8) };
    let emulated = if does_fua { OpFlags::NONE } else { OpFlags::FUA };
    let flags = if polls { emulated } else { emulated.with(OpFlags::HIPRI) };
    flags.asked_with(Op::Read) | u16::from(ops)
}

/// A route, and what it points at.
struct Found {
    route: Route,
    paths: Vec<Arc<Path>>,
    legs: Option<Box<Legs>>,
}

/// The route of a target that is not followed.
fn own(md: &Arc<MappedDevice>, placed: &Placed, clone: bool) -> Found {
    let (to, start) = match placed.capabilities.run() {
        _ if clone => (To::Clones, Sector::ZERO),
        Some(run) => (To::Device(Arc::as_ptr(&run.dev)), run.start),
        None => (to_target(placed).unwrap_or(To::Clones), Sector::ZERO),
    };
    let chunk = chunk_of(placed);
    let route = Route {
        begin: placed.begin,
        end: placed.end(),
        start,
        to,
        chunk,
        counters: md.counters(),
        path: std::ptr::null(),
        done: (own_done, Arc::as_ptr(md).cast()),
    };
    Found { route, paths: Vec::new(), legs: None }
}

/// The way to a target that takes the submitter's own bio; `None`: it takes clones only.
fn to_target(placed: &Placed) -> Option<To> {
    let (can, target) = (&placed.capabilities, &*placed.target);
    match can.memory() {
        Some(memory) => Some(To::Memory(memory)),
        None if can.synchronous => Some(To::Sync(target)),
        None if can.in_place && can.takes_back => Some(To::Placed(placed)),
        None => can.in_place.then_some(To::Target(target)),
    }
}

fn chunk_of(placed: &Placed) -> Option<Divisor> {
    placed.capabilities.max_io_len.map(|len| Divisor::new(len.get()))
}

/// The way down from one target of a table.
struct Walk<'a> {
    top: &'a Arc<MappedDevice>,
    runs: Vec<Weak<MappedDevice>>,
    tables: Vec<Arc<Table>>,
    out: Vec<Found>,
}

impl Walk<'_> {
    /// Follows a target of the top table; false when there is nothing to gain.
    fn follow_top(&mut self, table: &Arc<Table>, placed: &Placed) -> bool {
        self.tables.push(table.clone());
        let Some(run) = placed.capabilities.run() else {
            return self.spread(self.top, placed, placed.begin, Sectors::ZERO, placed.len);
        };
        let Some(below) = compilable(&*run.dev) else { return false };
        self.runs.push(Arc::downgrade(self.top));
        self.descend(&below, placed.begin, run.start, placed.len)
    }

    /// Follows each leg of a striped target of `md`, as far as it stays one route; false when the target is none.
    fn spread(&mut self, md: &Arc<MappedDevice>, placed: &Placed, top_at: Sector, into: Sectors, len: Sectors) -> bool {
        let Some(stripes) = placed.capabilities.stripes() else { return false };
        self.runs.push(Arc::downgrade(md));
        let (mut legs, mut paths) = (Vec::new(), Vec::new());
        for device in &placed.capabilities.devices {
            let leg = self.leg(device);
            paths.extend(leg.paths);
            legs.push(leg.route);
        }
        self.runs.pop();
        let legs = Box::new(Legs { stripes, legs: legs.into() });
        let route = route_to(top_at, len, To::Stripes(&raw const *legs), into.from_start(), chunk_of(placed));
        self.out.push(Found { route, paths, legs: Some(legs) });
        true
    }

    /// One leg: what lies below it if that is a single route without chunks or stripes of its own, else the leg's
    /// device.
    fn leg(&mut self, device: &TargetDevice) -> Found {
        let mark = (self.out.len(), self.tables.len());
        let below = compilable(&*device.dev);
        let followed = below.is_some_and(|below| self.descend(&below, Sector::ZERO, device.start, device.len));
        let plain = |f: &Found| f.route.chunk.is_none() && !matches!(f.route.to, To::Stripes(_));
        if !followed || self.out.len() != mark.0 + 1 || !plain(&self.out[mark.0]) {
            self.out.truncate(mark.0);
            self.tables.truncate(mark.1);
            let to = To::Device(Arc::as_ptr(&device.dev));
            self.finish(route_to(Sector::ZERO, device.len, to, device.start, None), None);
        }
        self.out.pop().expect("one was pushed, here or by descend")
    }

    /// `len` sectors from `begin` of the top device lie at `start` of `md`.
    fn descend(&mut self, md: &Arc<MappedDevice>, begin: Sector, start: Sector, len: Sectors) -> bool {
        let Some(table) = md.running_table() else { return false };
        let end = start + len;
        // The device may have been reloaded since the top's table was made: with a smaller table, or over lesser disks.
        if end > table.sectors().from_start() || narrower(&table, &self.tables[0]) {
            return false;
        }
        self.tables.push(table.clone());
        let mut at = start;
        while at < end {
            if self.out.len() >= ROUTES_MAX {
                return false;
            }
            let placed = table.find(at);
            let piece = placed.end().min(end) - at;
            let top_at = begin + (at - start);
            let into = at - placed.begin;
            if !self.step(md, placed, top_at, into, piece) {
                return false;
            }
            at += piece;
        }
        self.tables.pop();
        true
    }

    /// One target of a device beneath: followed further, or the end of the path.
    fn step(&mut self, md: &Arc<MappedDevice>, placed: &Placed, top_at: Sector, into: Sectors, len: Sectors) -> bool {
        let ends = |to, start| route_to(top_at, len, to, start, chunk_of(placed));
        if let Some(run) = placed.capabilities.run() {
            self.runs.push(Arc::downgrade(md));
            let deeper = compilable(&*run.dev);
            let mark = (self.out.len(), self.tables.len());
            if !deeper.is_some_and(|below| self.descend(&below, top_at, run.start + into, len)) {
                self.out.truncate(mark.0);
                self.tables.truncate(mark.1);
                self.finish(ends(To::Device(Arc::as_ptr(&run.dev)), run.start + into), None);
            }
            self.runs.pop();
            return true;
        }
        if self.spread(md, placed, top_at, into, len) {
            return true;
        }
        let Some(to) = to_target(placed) else { return false };
        self.finish(ends(to, into.from_start()), Some(Arc::downgrade(md)));
        true
    }

    fn finish(&mut self, mut route: Route, terminal: Option<Weak<MappedDevice>>) {
        let path = Arc::new(Path::new(self.runs.clone(), terminal, self.tables.clone()));
        route.counters = &raw const path.counters;
        route.path = Arc::as_ptr(&path);
        route.done = (path_done, Arc::as_ptr(&path).cast());
        self.out.push(Found { route, paths: vec![path], legs: None });
    }
}

/// The route of `len` sectors from `begin` on that leads to `start` of `to`, by a path that is not made yet.
fn route_to(begin: Sector, len: Sectors, to: To, start: Sector, chunk: Option<Divisor>) -> Route {
    let (counters, path) = (std::ptr::null(), std::ptr::null());
    Route { begin, end: begin + len, start, to, chunk, counters, path, done: (path_done, std::ptr::null()) }
}

/// The mapped device that `dev` is, if a path may lead through it.
fn compilable(dev: &dyn BlockDevice) -> Option<Arc<MappedDevice>> {
    let md = dev.as_any().downcast_ref::<MappedDevice>()?.arc()?;
    let options = md.options();
    (options.compile && !options.clone_always).then_some(md)
}

/// Whether the table beneath would refuse, split or emulate what the top one passes on as it is.
fn narrower(below: &Table, top: &Table) -> bool {
    let (limits, asked) = (below.limits(), top.limits());
    below.read_only() && !top.read_only()
        || limits.logical_block_size > asked.logical_block_size
        || limits.max_sectors < asked.max_sectors
        || does_fua(&asked) && !does_fua(&limits)
}

/// Whether what completes with FUA is durable without more.
pub(super) fn does_fua(limits: &Limits) -> bool {
    limits.fua || !limits.write_cache
}
