//! A mapped device.

mod attributes;
mod back;
mod control;
mod holders;
mod path;
mod plan;
mod slot;
mod split;
mod submit;
mod suspend;

pub use attributes::{Polls, ZeroSkips};
pub use control::{Geometry, Info, LoadOptions};
pub use suspend::SuspendOptions;

use crate::activity::Activities;
use crate::counters::PerChannel;
use crate::events::Events;
use crate::inspect::patiently;
use crate::registry::RegistryCore;
use crate::table::{Table, TableSlot, depth};
use crate::{OpenDevice, Totals};
use holders::Holders;
use path::Path;
use plan::Plan;
use slot::PlanSlot;
use std::any::Any;
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;
use udm_base::{DevT, Sector, Sectors};
use udm_io::{Bio, BlockDevice, Clock, Cx, DeviceId, DirectAccess, Domain, ExtentsReply, Limits, Op};

/// A device of the registry: a name, a number, up to two tables, and the bios that go through the active one.
pub struct MappedDevice {
    this: Weak<MappedDevice>,
    registry: Weak<RegistryCore>,
    devt: DevT,
    /// What bios follow; null while there is no active table or the device is suspended.
    plan: PlanSlot,
    counters: PerChannel,
    sectors: AtomicU64,
    read_only: AtomicBool,
    held: Mutex<HeldBios>,
    control: Mutex<control::Control>,
    /// Serialises what takes long: suspend, resume, removal.
    operation: Mutex<()>,
    paths: Mutex<Paths>,
    /// Devices whose tables use this one.
    holders: Mutex<Holders>,
    activities: Activities,
    options: Mutex<Options>,
    /// Options of targets that were set.
    target_options: Mutex<BTreeMap<String, String>>,
    events: Events,
    noflush: AtomicBool,
    /// In microseconds; [`NO_BUDGET`] when it was not set. Looked at before every sleep of a channel that holds the
    /// device.
    poll_budget: AtomicU64,
    /// Split bios that wait for clones: in flight, though counted nowhere else.
    parked: AtomicUsize,
}

/// What happens to a bio that finds no plan.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Mode {
    /// Never resumed, or its table taken away: EIO.
    Empty,
    Running,
    /// Held until the resume.
    Suspended,
    /// EIO.
    Removed,
}

struct HeldBios {
    mode: Mode,
    bios: VecDeque<Bio>,
}

#[derive(Default)]
struct Paths {
    /// Those that stand for this device among others, from plans of any device.
    through: Vec<Arc<Path>>,
    /// What paths that are gone counted.
    gone: Totals,
    /// Plans replaced while bios may come back to them.
    #[expect(clippy::vec_box, reason = "bios that wait for clones point at their plan")]
    retired: Vec<Box<Plan>>,
}

/// How a device's bios are served; see `udm set`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Options {
    pub(crate) clone_always: bool,
    pub(crate) compile: bool,
    /// In sectors, when it was set.
    pub(crate) read_ahead: Option<u32>,
    pub(crate) io_poll: bool,
}

/// No budget of a device's own.
const NO_BUDGET: u64 = u64::MAX;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl MappedDevice {
    pub(crate) fn new(
        registry: Weak<RegistryCore>,
        clock: Arc<dyn Clock>,
        devt: DevT,
        name: String,
        uuid: String,
    ) -> Arc<Self> {
        Arc::new_cyclic(|this| Self {
            this: this.clone(),
            registry,
            devt,
            plan: PlanSlot::default(),
            counters: PerChannel::new(),
            sectors: AtomicU64::new(0),
            read_only: AtomicBool::new(false),
            held: Mutex::new(HeldBios { mode: Mode::Empty, bios: VecDeque::new() }),
            control: Mutex::new(control::Control::new(name, uuid)),
            operation: Mutex::new(()),
            paths: Mutex::default(),
            holders: Mutex::default(),
            activities: Activities::new(clock),
            options: Mutex::new(Options { clone_always: false, compile: true, read_ahead: None, io_poll: true }),
            target_options: Mutex::default(),
            events: Events::default(),
            noflush: AtomicBool::new(false),
            poll_budget: AtomicU64::new(NO_BUDGET),
            parked: AtomicUsize::new(0),
        })
    }

    /// Its device number.
    pub fn devt(&self) -> DevT {
        self.devt
    }

    fn arc(&self) -> Option<Arc<Self>> {
        self.this.upgrade()
    }

    fn counters(&self) -> &PerChannel {
        &self.counters
    }

    fn options(&self) -> Options {
        *lock(&self.options)
    }

    /// Whether bios are always cloned, never remapped: to measure what a clone costs.
    pub fn clone_always(&self) -> bool {
        self.options().clone_always
    }

    /// Whether plans lead through this device and down from it in one step.
    pub fn compile(&self) -> bool {
        self.options().compile
    }

    /// Changes `clone_always`; bios that arrive from now on follow.
    pub fn set_clone_always(&self, on: bool) {
        lock(&self.options).clone_always = on;
        self.replan_all();
    }

    /// Changes `compile`; bios that arrive from now on follow.
    pub fn set_compile(&self, on: bool) {
        lock(&self.options).compile = on;
        self.replan_all();
    }

    /// The table in a slot.
    pub fn table(&self, slot: TableSlot) -> Option<Arc<Table>> {
        let control = lock(&self.control);
        match slot {
            TableSlot::Active => control.active.clone(),
            TableSlot::Inactive => control.inactive.clone(),
        }
    }

    /// The active table if bios may go through it now.
    fn running_table(&self) -> Option<Arc<Table>> {
        if lock(&self.held).mode != Mode::Running {
            return None;
        }
        self.table(TableSlot::Active)
    }

    fn table_read_only(&self) -> bool {
        self.read_only.load(Ordering::Relaxed)
    }

    /// What the device did.
    pub fn totals(&self) -> Totals {
        let mut totals = self.counters.totals();
        let paths = lock(&self.paths);
        totals += paths.gone;
        for path in &paths.through {
            totals += path.totals_of(self);
        }
        totals
    }

    /// Bios in flight in the device, by any path. Once the gate is closed 0 is final: those that are parked are asked
    /// for first, because they turn into clones in flight, and nothing is parked any more.
    fn in_flight(&self) -> u64 {
        let parked = self.parked.load(Ordering::Acquire) as u64;
        let through: u64 = lock(&self.paths).through.iter().map(|p| p.counters.in_flight()).fold(0, u64::wrapping_add);
        parked.wrapping_add(self.counters.in_flight()).wrapping_add(through)
    }

    /// What it is busy with, and for how many nanoseconds.
    pub(crate) fn doing(&self) -> Vec<(String, u64)> {
        self.activities.list()
    }

    /// Its name and its uuid; `None` when the lock cannot be had.
    pub(crate) fn names_now(&self) -> Option<(String, String)> {
        patiently(&self.control).map(|control| (control.name.clone(), control.uuid.clone()))
    }

    /// Its name and its tables, the active one first; `None` when the lock cannot be had.
    pub(crate) fn look(&self) -> Option<(String, Vec<Arc<Table>>)> {
        let control = patiently(&self.control)?;
        let tables = [&control.active, &control.inactive].into_iter().flatten().cloned().collect();
        Some((control.name.clone(), tables))
    }

    /// What happens to bios that arrive, in a word, and how many are held; `None` when the lock cannot be had.
    pub(crate) fn mode_now(&self) -> Option<(&'static str, usize)> {
        let held = patiently(&self.held)?;
        let state = match held.mode {
            Mode::Empty => "empty",
            Mode::Running => "running",
            Mode::Suspended => "suspended",
            Mode::Removed => "removed",
        };
        Some((state, held.bios.len()))
    }

    /// Bios that wait for clones, bios in flight, and bios that have arrived; `None` when the lock cannot be had.
    pub(crate) fn counts(&self) -> Option<(u64, u64, u64)> {
        drop(patiently(&self.paths)?);
        let totals = self.totals();
        let parked = self.parked.load(Ordering::Acquire) as u64;
        Some((parked, self.in_flight(), totals.reads + totals.writes + totals.others))
    }

    /// Opens the device. Fails once it is removed.
    pub fn open(&self) -> Result<OpenDevice, crate::Error> {
        self.opened()
    }

    pub(crate) fn open_for_table(&self) -> Result<OpenDevice, crate::Error> {
        self.opened()
    }
}

impl BlockDevice for MappedDevice {
    #[inline]
    fn submit(&self, cx: &Cx<'_>, bio: Bio) -> Option<Bio> {
        self.serve(cx, bio)
    }

    fn take_back(&self, bio: Bio) -> Option<Bio> {
        self.hold_again(bio);
        None
    }

    fn sectors(&self) -> Sectors {
        Sectors::new(self.sectors.load(Ordering::Acquire))
    }

    fn limits(&self) -> Limits {
        // Not by another hold on the table: this is asked inside channels too, where the last one must not be let go
        // of.
        lock(&self.control).active.as_ref().map_or_else(Limits::default, |table| table.limits())
    }

    fn id(&self) -> DeviceId {
        DeviceId::Number(self.devt)
    }

    fn name(&self) -> String {
        self.devt.to_string()
    }

    fn read_only(&self) -> bool {
        self.table_read_only()
    }

    fn level(&self) -> usize {
        depth::level(self)
    }

    fn can_poll(&self) -> bool {
        self.io_poll() && self.table(TableSlot::Active).is_some_and(|table| table.can_poll())
    }

    fn poll_budget(&self) -> Option<Duration> {
        self.chosen_poll_budget().map(|us| Duration::from_micros(us.into()))
    }

    fn set_poll_queues(&self, n: u32) -> bool {
        let Some(table) = self.table(TableSlot::Active) else { return false };
        table.mapped_to().iter().filter(|dev| dev.set_poll_queues(n)).count() > 0
    }

    fn direct_access<'a>(
        &'a self,
        cx: &'a Cx<'_>,
        op: Op,
        sector: Sector,
        sectors: Sectors,
    ) -> Option<DirectAccess<'a>> {
        self.plan.get(cx)?.direct_access(cx, op, sector, sectors)
    }

    fn extents(&self, cx: &Cx<'_>, sector: Sector, sectors: Sectors, reply: ExtentsReply) {
        // A device that does not run knows nothing: what it does not run, a target that waits for its resume, is not
        // asked.
        let Some(plan) = self.plan.get(cx) else { return };
        let Some(end) = sector.checked_add(sectors).filter(|end| *end <= plan.len.from_start()) else { return };
        if sectors.is_zero() {
            return;
        }
        // One target's answer, as far as it goes: who wants more asks again. What most ask for is the first extent,
        // and of a stack of stripes the rest of a long range costs a thousand times as much.
        let placed = plan.table.find(sector);
        let len = placed.end().min(end) - sector;
        let (at, reply) = (sector - placed.begin, reply.within(len));
        match placed.capabilities.locate(at) {
            Some((beneath, sector, left)) => beneath.dev.extents(cx, sector, len.min(left), reply),
            None => placed.target.extents(cx, at, len, reply),
        }
    }

    fn is_for(&self, domain: &Domain) -> bool {
        // Without a registry nothing changes any more.
        self.registry.upgrade().is_none_or(|registry| registry.domain == *domain)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl std::fmt::Debug for MappedDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({})", self.device_name(), self.devt)
    }
}
