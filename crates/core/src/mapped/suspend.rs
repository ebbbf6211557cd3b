//! Suspend, resume, and the publishing of plans between them.

use super::path::Path;
use super::plan::Plan;
use super::{MappedDevice, Mode, lock};
use crate::activity::Activity;
use crate::registry::RegistryCore;
use crate::table::{Table, TableSlot};
use crate::{Cancel, Error, Target};
use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use udm_base::Errno;
use udm_io::{Bio, BlockDevice, Status};

/// Plans and paths out of use. With them may go tables, with those the last hold on a device whose removal was
/// deferred; so it is made before the `plans` lock is taken, and dropped after it is released.
#[derive(Default)]
struct Trash {
    #[expect(clippy::vec_box, reason = "bios that wait for clones point at their plan")]
    plans: Vec<Box<Plan>>,
    paths: Vec<Arc<Path>>,
}

/// What is told of a command that has the device's operations to itself, and of one that waits for that.
const TURN: &str = "waits for another command on the device";
const IDLE: &str = "waits for bios in flight";

/// How often a removal looks whether others have dropped its table, at most: a tenth of a second. Whoever shows a table
/// may hold it longer.
const LOOKS: u32 = 400;

/// How to suspend.
#[derive(Clone, Copy, Debug, Default)]
pub struct SuspendOptions {
    /// Targets push bios that they hold back to the device, rather than finish them.
    pub noflush: bool,
    /// No file system is told (there is none to tell here; kept for targets and nodes).
    pub nolockfs: bool,
}

impl MappedDevice {
    /// Holds bios back and waits until none is in flight. Blocks. A device that is suspended stays so.
    pub fn suspend(self: &Arc<Self>, options: SuspendOptions, cancel: Cancel<'_>) -> Result<(), Error> {
        let doing = self.activities.begin(TURN);
        let _operation = lock(&self.operation);
        self.check_alive()?;
        self.suspend_locked(options, cancel, &doing)
    }

    /// Makes the inactive table active, if there is one, and lets bios go. Blocks while it suspends a running device
    /// for the swap.
    pub fn resume(self: &Arc<Self>, options: SuspendOptions, cancel: Cancel<'_>) -> Result<(), Error> {
        let doing = self.activities.begin(TURN);
        let _operation = lock(&self.operation);
        self.check_alive()?;
        let registry = self.registry()?;
        // Kept until the new table runs: its targets may take over from the old one's.
        let mut old = None;
        if lock(&self.control).inactive.is_some() {
            self.suspend_locked(options, cancel, &doing)?;
            old = self.swap_tables();
        }
        let started = if lock(&self.control).suspended { self.start(&registry, &doing) } else { Ok(()) };
        doing.now("lets go of the table before");
        drop(old);
        started
    }

    /// Lets bios of a suspended device go with the table that is active, whether another waits or not.
    pub fn resume_as_before(self: &Arc<Self>) -> Result<(), Error> {
        let doing = self.activities.begin(TURN);
        let _operation = lock(&self.operation);
        self.check_alive()?;
        let registry = self.registry()?;
        if lock(&self.control).suspended { self.start(&registry, &doing) } else { Ok(()) }
    }

    /// Runs `work` while no bio is in flight in the device and none comes, without a word to its targets
    /// (`dm_internal_suspend_fast`, `drivers/md/dm.c`, 6.12). A device that is suspended, or has no table, stays as it
    /// is. Blocks until the bios in flight are done.
    pub fn while_suspended<T>(self: &Arc<Self>, work: impl FnOnce() -> T) -> Result<T, Error> {
        let doing = self.activities.begin(TURN);
        let _operation = lock(&self.operation);
        self.check_alive()?;
        let registry = self.registry()?;
        let running = lock(&self.held).mode == Mode::Running;
        if !running {
            return Ok(work());
        }
        doing.now(IDLE);
        self.quiesce(&registry, Mode::Suspended);
        self.wait_idle(&registry, &|| false);
        let done = work();
        if let Some(table) = self.table(TableSlot::Active) {
            self.unquiesce(&registry, &table);
        }
        Ok(done)
    }

    fn check_alive(&self) -> Result<(), Error> {
        let control = lock(&self.control);
        if control.deleting {
            Err(Error::new(Errno::ENXIO, format!("{} is being removed", control.name)))
        } else {
            Ok(())
        }
    }

    fn registry(&self) -> Result<Arc<RegistryCore>, Error> {
        self.registry.upgrade().ok_or_else(|| Error::new(Errno::ENXIO, "udm is ending"))
    }

    fn swap_tables(&self) -> Option<Arc<Table>> {
        let mut control = lock(&self.control);
        let new = control.inactive.take();
        if let Some(table) = &new {
            if self.sectors.swap(table.sectors().get(), Ordering::AcqRel) != table.sectors().get() {
                control.geometry = Default::default();
            }
            self.read_only.store(table.read_only(), Ordering::Release);
        }
        std::mem::replace(&mut control.active, new)
    }

    fn suspend_locked(
        self: &Arc<Self>,
        options: SuspendOptions,
        cancel: Cancel<'_>,
        doing: &Activity<'_>,
    ) -> Result<(), Error> {
        let active = {
            let control = lock(&self.control);
            if control.is_still() {
                return Ok(());
            }
            control.active.clone()
        };
        let registry = self.registry()?;
        // First, so that what targets push back is taken back.
        self.noflush.store(options.noflush, Ordering::Release);
        doing.now("waits for its targets to be still");
        if let Some(table) = &active {
            table.each(|t| t.presuspend(options.noflush));
        }
        doing.now(IDLE);
        self.quiesce(&registry, Mode::Suspended);
        if !self.wait_idle(&registry, cancel) {
            {
                // Until its targets go on, which they may refuse to do: then its bios are still to be waited for.
                let mut control = lock(&self.control);
                (control.suspended, control.unsettled) = (true, true);
            }
            self.start(&registry, doing)?;
            return Err(Error::new(Errno::EINTR, "the wait for bios in flight was interrupted; the device goes on"));
        }
        doing.now("waits for its targets to write what they keep");
        if let Some(table) = &active {
            table.each(Target::postsuspend);
        }
        lock(&self.control).set_suspended(true);
        Ok(())
    }

    /// From here on bios find no plan, by whatever path they come.
    fn quiesce(self: &Arc<Self>, registry: &RegistryCore, mode: Mode) {
        let mut trash = Trash::default();
        let _plans = lock(&registry.plans);
        lock(&self.held).mode = mode;
        self.publish(registry, None, &mut trash);
        self.replan_above(registry, &mut trash);
    }

    /// Waits for the bios in flight; false if cancelled.
    fn wait_idle(&self, registry: &RegistryCore, cancel: Cancel<'_>) -> bool {
        let mut cancelled = false;
        let active = self.table(TableSlot::Active);
        active.inspect(|table| table.drain_delayed(&registry.domain));
        registry.domain.drain(|| {
            let idle = self.in_flight() == 0;
            cancelled = !idle && cancel();
            idle || cancelled
        });
        self.settle();
        !cancelled
    }

    fn start(self: &Arc<Self>, registry: &RegistryCore, doing: &Activity<'_>) -> Result<(), Error> {
        doing.now("waits for its targets to begin");
        let table = lock(&self.control).active.clone();
        let Some(table) = table else {
            return Err(Error::new(
                Errno::EINVAL,
                format!("{} has no table to resume with; load one", self.device_name()),
            ));
        };
        for placed in table.placed() {
            placed.target.preresume()?;
        }
        // Before any bio comes (`__dm_resume`, `drivers/md/dm.c`, 6.12): a snapshot takes over from the table before
        // here, which may wait for other devices, and until then it has nothing to serve bios from.
        table.each(Target::resume);
        self.unquiesce(registry, &table);
        Ok(())
    }

    /// From here on bios find a plan again, those first that were held.
    fn unquiesce(self: &Arc<Self>, registry: &RegistryCore, table: &Arc<Table>) {
        table.allow_delays();
        let mut trash = Trash::default();
        let held = {
            let _plans = lock(&registry.plans);
            self.publish(registry, Some(Plan::build(self, table.clone())), &mut trash);
            self.noflush.store(false, Ordering::Release);
            let mut held = lock(&self.held);
            held.mode = Mode::Running;
            let bios = std::mem::take(&mut held.bios);
            drop(held);
            self.replan_above(registry, &mut trash);
            bios
        };
        lock(&self.control).set_suspended(false);
        held.into_iter().for_each(Bio::resubmit);
        drop(trash);
    }

    /// Puts a plan in the place of the one there is, and frees that after a grace period. Under the registry's `plans`
    /// lock.
    fn publish(self: &Arc<Self>, registry: &RegistryCore, plan: Option<Plan>, trash: &mut Trash) {
        for path in plan.iter().flat_map(|p| &p.paths) {
            for md in path.devices() {
                lock(&md.paths).through.push(path.clone());
            }
        }
        if let Some(old) = self.plan.replace(&registry.domain, plan.map(Box::new)) {
            let paths = old.paths.clone();
            paths.iter().for_each(|p| p.retire());
            lock(&self.paths).retired.push(old);
            paths.iter().flat_map(|p| p.devices()).for_each(|md| md.reap(trash));
        }
        self.reap(trash);
    }

    /// Takes out plans and paths that nothing refers to any more, and keeps what they counted.
    fn reap(&self, trash: &mut Trash) {
        let mut paths = lock(&self.paths);
        let (kept, done) =
            std::mem::take(&mut paths.retired).into_iter().partition(|p| p.parked.load(Ordering::Acquire) > 0);
        paths.retired = kept;
        trash.plans.extend::<Vec<_>>(done);
        let done: Vec<_> = paths.through.iter().filter(|p| p.is_done()).cloned().collect();
        drop(paths);
        for path in done {
            path.devices().for_each(|md| md.fold(&path));
            trash.paths.push(path);
        }
    }

    /// Keeps what a path counted here, and forgets the path.
    fn fold(&self, path: &Arc<Path>) {
        let mut paths = lock(&self.paths);
        let before = paths.through.len();
        paths.through.retain(|p| !Arc::ptr_eq(p, path));
        if paths.through.len() < before {
            paths.gone += path.totals_of(self);
        }
    }

    /// Lets go of the tables that only bios in flight still held, if these are done.
    pub(super) fn settle(&self) {
        self.reap(&mut Trash::default());
    }

    /// New plans for every running device above this one. Under the registry's `plans` lock.
    fn replan_above(self: &Arc<Self>, registry: &RegistryCore, trash: &mut Trash) {
        let mut seen = HashSet::from([self.devt()]);
        let mut next: VecDeque<Arc<Self>> = self.holders_now().into();
        while let Some(md) = next.pop_front() {
            if !seen.insert(md.devt()) {
                continue;
            }
            md.replan(registry, trash);
            next.extend(md.holders_now());
        }
    }

    pub(super) fn holders_now(&self) -> Vec<Arc<Self>> {
        lock(&self.holders).now()
    }

    fn replan(self: &Arc<Self>, registry: &RegistryCore, trash: &mut Trash) {
        if let Some(table) = self.running_table() {
            self.publish(registry, Some(Plan::build(self, table)), trash);
        }
    }

    /// New plans for this device and all above, after an option has changed.
    pub(super) fn replan_all(&self) {
        if let (Some(me), Some(registry)) = (self.arc(), self.registry.upgrade()) {
            let mut trash = Trash::default();
            let _plans = lock(&registry.plans);
            me.replan(&registry, &mut trash);
            me.replan_above(&registry, &mut trash);
        }
    }

    /// The end: fails what is held, waits for what is in flight, drops the tables. Blocks.
    pub(crate) fn destroy(self: &Arc<Self>, registry: &RegistryCore) {
        let doing = self.activities.begin(TURN);
        let _operation = lock(&self.operation);
        let (active, was_still) = {
            let control = lock(&self.control);
            (control.active.clone(), control.is_still())
        };
        if let (Some(table), false) = (&active, was_still) {
            doing.now("waits for its targets to be still");
            table.each(|t| t.presuspend(false));
        }
        doing.now(IDLE);
        self.quiesce(registry, Mode::Removed);
        let held = std::mem::take(&mut lock(&self.held).bios);
        held.into_iter().for_each(|bio| bio.end(Status::Io));
        self.wait_idle(registry, &|| false);
        doing.now("waits for its targets to write what they keep");
        if let (Some(table), false) = (&active, was_still) {
            table.each(Target::postsuspend);
        }
        let tables = {
            let mut control = lock(&self.control);
            self.sectors.store(0, Ordering::Release);
            (control.active.take(), control.inactive.take())
        };
        debug_assert_eq!(self.level(), 1, "no table is left");
        drop(tables);
        if let Some(table) = active {
            // Another thread that makes plans may still have one of ours to drop: it lets go of `plans` first. Whoever
            // has removed a device expects that what it stood on is free.
            let mut looks = 0;
            registry.domain.drain(|| {
                looks += 1;
                Arc::strong_count(&table) == 1 || looks == LOOKS
            });
        }
    }
}
