//! A plan: what a running device does with a bio, looked up by sector.
//!
//! A plan is made from a table. Targets that only shift addresses are followed down, through the mapped devices beneath,
//! as far as each runs, may be compiled and refuses nothing that its user would not refuse; so a stack of such
//! targets costs one step, and still counts for each of its devices.

use super::MappedDevice;
use super::path::Path;
use crate::counters::PerChannel;
use crate::table::{Placed, Table};
use crate::{Run, Target};
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Weak};
use udm_base::{Divisor, Sector, Sectors, Stripes};
use udm_io::{BlockDevice, Limits, Memory};

/// At most this many extents come from one table; past it targets are left as they are.
const EXTENTS_MAX: usize = 4096;

/// Where an extent's bios go.
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
    /// To one of several, by arithmetic.
    Stripes(*const Legs),
    /// By way of clones.
    Clones,
}

/// The ways of a striped extent. Each leg is an extent whose addresses count from the leg's start, and which leads to a
/// device or to a target that ends each bio at once.
pub(super) struct Legs {
    stripes: Stripes,
    legs: Box<[Extent]>,
}

impl Legs {
    /// The leg of a bio that begins `at` sectors into the striped target, and where on the leg's device or target.
    #[inline]
    pub(super) fn find(&self, at: Sectors) -> (&Extent, Sector) {
        let (leg, into) = self.stripes.locate(at);
        let leg = &self.legs[leg];
        (leg, leg.start + into)
    }
}

/// A stretch of the device.
pub(super) struct Extent {
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
}

/// How a running device serves bios. Immutable.
pub(crate) struct Plan {
    pub(super) md: *const MappedDevice,
    pub(super) table: Arc<Table>,
    pub(super) extents: Box<[Extent]>,
    pub(super) len: Sectors,
    pub(super) max_sectors: Sectors,
    /// Sectors of a logical block, less one.
    pub(super) block_mask: u64,
    pub(super) read_only: bool,
    pub(super) fua: bool,
    /// Bios may be polled for.
    pub(super) poll: bool,
    pub(super) level: usize,
    pub(super) paths: Vec<Arc<Path>>,
    /// What striped extents point at.
    #[expect(clippy::vec_box, reason = "extents point at their legs")]
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
        let mut extents = Vec::new();
        let (mut paths, mut legs) = (Vec::new(), Vec::new());
        for placed in table.placed() {
            let mut walk = Walk { top: md, runs: Vec::new(), tables: Vec::new(), out: Vec::new() };
            if options.clone_always || !(options.compile && walk.follow_top(&table, placed)) {
                walk.out.clear();
                walk.out.push(own(md, placed, options.clone_always));
            }
            for found in walk.out {
                paths.extend(found.paths);
                legs.extend(found.legs);
                extents.push(found.extent);
            }
        }
        let limits = table.limits();
        Self {
            md: Arc::as_ptr(md),
            extents: extents.into(),
            len: table.sectors(),
            max_sectors: limits.max_sectors,
            block_mask: u64::from(limits.logical_block_size) / 512 - 1,
            read_only: table.read_only(),
            fua: does_fua(&limits),
            poll: options.io_poll && table.can_poll(),
            level: table.level(),
            paths,
            _legs: legs,
            parked: AtomicUsize::new(0),
            table,
        }
    }

    /// The extent of a sector that lies within the device.
    #[inline]
    pub(super) fn find(&self, sector: Sector) -> Option<&Extent> {
        match &*self.extents {
            [one] => Some(one),
            many => many.get(many.partition_point(|e| e.end <= sector)),
        }
    }
}

/// An extent, and what it points at.
struct Found {
    extent: Extent,
    paths: Vec<Arc<Path>>,
    legs: Option<Box<Legs>>,
}

/// The extent of a target that is not followed.
fn own(md: &Arc<MappedDevice>, placed: &Placed, clone: bool) -> Found {
    let target: &dyn Target = &*placed.target;
    let to = match (target.run(), clone) {
        (_, true) => To::Clones,
        (Some(run), _) => To::Device(Arc::as_ptr(run.dev)),
        (None, _) if target.is_synchronous() => at_once(target),
        (None, _) if target.no_clone() => To::Target(target),
        (None, _) => To::Clones,
    };
    let start = target.run().filter(|_| matches!(to, To::Device(_))).map_or(Sector::ZERO, |run| run.start);
    let chunk = chunk_of(target);
    let extent = Extent {
        begin: placed.begin,
        end: placed.end(),
        start,
        to,
        chunk,
        counters: md.counters(),
        path: std::ptr::null(),
    };
    Found { extent, paths: Vec::new(), legs: None }
}

/// The way to a target that ends each bio at once.
fn at_once(target: &dyn Target) -> To {
    target.memory().map_or(To::Sync(target), |memory| To::Memory(memory))
}

fn chunk_of(target: &dyn Target) -> Option<Divisor> {
    target.max_io_len().map(|len| Divisor::new(len.get()))
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
        let Some(run) = placed.target.run() else {
            return self.spread(self.top, &*placed.target, placed.begin, Sectors::ZERO, placed.len);
        };
        let Some(below) = compilable(&**run.dev) else { return false };
        self.runs.push(Arc::downgrade(self.top));
        self.descend(&below, placed.begin, run.start, placed.len)
    }

    /// Follows each leg of a striped target of `md`, as far as it stays one extent; false when the target is none.
    fn spread(
        &mut self,
        md: &Arc<MappedDevice>,
        target: &dyn Target,
        top_at: Sector,
        into: Sectors,
        len: Sectors,
    ) -> bool {
        let Some(striping) = target.striping() else { return false };
        self.runs.push(Arc::downgrade(md));
        let (mut legs, mut paths) = (Vec::new(), Vec::new());
        for run in &striping.legs {
            let leg = self.leg(run, striping.len);
            paths.extend(leg.paths);
            legs.push(leg.extent);
        }
        self.runs.pop();
        let legs = Box::new(Legs { stripes: striping.stripes, legs: legs.into() });
        let extent = Extent {
            begin: top_at,
            end: top_at + len,
            start: into.from_start(),
            to: To::Stripes(&raw const *legs),
            chunk: chunk_of(target),
            counters: std::ptr::null(),
            path: std::ptr::null(),
        };
        self.out.push(Found { extent, paths, legs: Some(legs) });
        true
    }

    /// One leg: what lies below it if that is a single extent without chunks or stripes of its own, else the leg's device.
    fn leg(&mut self, run: &Run<'_>, len: Sectors) -> Found {
        let mark = (self.out.len(), self.tables.len());
        let below = compilable(&**run.dev);
        let followed = below.is_some_and(|below| self.descend(&below, Sector::ZERO, run.start, len));
        let plain = |f: &Found| f.extent.chunk.is_none() && !matches!(f.extent.to, To::Stripes(_));
        if !followed || self.out.len() != mark.0 + 1 || !plain(&self.out[mark.0]) {
            self.out.truncate(mark.0);
            self.tables.truncate(mark.1);
            let to = To::Device(Arc::as_ptr(run.dev));
            let (begin, end, nothing) = (Sector::ZERO, len.from_start(), std::ptr::null());
            self.finish(
                Extent { begin, end, start: run.start, to, chunk: None, counters: nothing, path: std::ptr::null() },
                None,
            );
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
            if self.out.len() >= EXTENTS_MAX {
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
        let target: &dyn Target = &*placed.target;
        let ends = |to, start| Extent {
            begin: top_at,
            end: top_at + len,
            start,
            to,
            chunk: chunk_of(target),
            counters: std::ptr::null(),
            path: std::ptr::null(),
        };
        let (extent, terminal) = if let Some(run) = target.run() {
            self.runs.push(Arc::downgrade(md));
            let deeper = compilable(&**run.dev);
            let mark = (self.out.len(), self.tables.len());
            if !deeper.is_some_and(|below| self.descend(&below, top_at, run.start + into, len)) {
                self.out.truncate(mark.0);
                self.tables.truncate(mark.1);
                self.finish(ends(To::Device(Arc::as_ptr(run.dev)), run.start + into), None);
            }
            self.runs.pop();
            return true;
        } else if self.spread(md, target, top_at, into, len) {
            return true;
        } else if target.is_synchronous() {
            (ends(at_once(target), into.from_start()), Some(Arc::downgrade(md)))
        } else if target.no_clone() {
            (ends(To::Target(target), into.from_start()), Some(Arc::downgrade(md)))
        } else {
            return false;
        };
        self.finish(extent, terminal);
        true
    }

    fn finish(&mut self, mut extent: Extent, terminal: Option<Weak<MappedDevice>>) {
        let path = Arc::new(Path::new(self.runs.clone(), terminal, self.tables.clone()));
        extent.counters = &raw const path.counters;
        extent.path = Arc::as_ptr(&path);
        self.out.push(Found { extent, paths: vec![path], legs: None });
    }
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
