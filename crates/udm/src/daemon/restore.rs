//! Makes the devices of a state again.
//!
//! # Invariants
//! - If one device fails, the others are made all the same.
//! - A device never comes back with less data than it had: if its data was in memory, or cannot be reached, it gets an
//!   error table of its size, and its own table is kept in the state.
//! - No device is suspended before all are made: a constructor above may read through any device.

mod order;

pub(crate) use order::lines_of as lines_of_tables;

use super::lost::{Lost, LostDevices};
use super::secret::HIDDEN;
use super::state::{DeviceState, State, TableState};
use order::{Wave, in_order, waves};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::panic::resume_unwind;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tracing::{error, info, warn};
use udm_base::{Errno, Sectors};
use udm_core::{Error, Geometry, LoadOptions, MappedDevice, Registry, SuspendOptions, TableLine};

/// A problem with a device.
pub(crate) struct Problem {
    /// For people.
    pub(crate) text: String,
    /// Not new: the device was lost already.
    pub(crate) known: bool,
}

impl Problem {
    fn new(text: String) -> Self {
        Self { text, known: false }
    }
}

/// Makes tables, perhaps over another process's memory.
pub(crate) trait Maker {
    /// Loads a table of the device. `live`: it is the one that was active.
    fn load(&self, md: &Arc<MappedDevice>, lines: &[TableLine], read_only: bool, live: bool) -> Result<(), Error>;

    /// Whether data in a process's memory is passed on.
    fn has_memory(&self) -> bool;
}

/// How long devices beneath may still be locked by a process that is just ending, for all devices together. The kernel
/// closes its files one after the other, those with requests under way last.
const LOCKED: Duration = Duration::from_secs(5);

/// The most devices above remote exports that are made at a time.
pub(crate) const THREADS: usize = 64;

/// After a crash: tables come from what is on disk.
pub(crate) struct FromDisk<'a> {
    deadline: Instant,
    /// Whether the device is not wanted any more.
    cancel: Leave<'a>,
}

impl FromDisk<'static> {
    pub(crate) fn new() -> Self {
        Self::unless(&|_| false)
    }
}

impl<'a> FromDisk<'a> {
    pub(crate) fn unless(cancel: Leave<'a>) -> Self {
        Self { deadline: Instant::now() + LOCKED, cancel }
    }
}

impl Maker for FromDisk<'_> {
    fn load(&self, md: &Arc<MappedDevice>, lines: &[TableLine], read_only: bool, _: bool) -> Result<(), Error> {
        loop {
            // A secret table is not on disk.
            let cancel = &|| (self.cancel)(md);
            let options = LoadOptions { read_only, cwd: Path::new("/"), cancel, secret: false, as_kernel: false };
            match md.load_as(lines, &options) {
                Err(e) if e.errno == Errno::EBUSY && Instant::now() < self.deadline => {
                    std::thread::sleep(Duration::from_millis(10));
                }
                other => return other,
            }
        }
    }

    fn has_memory(&self) -> bool {
        false
    }
}

/// Existing devices, by minor, and their entries in the state.
pub(crate) type Made<'a> = BTreeMap<u32, (Arc<MappedDevice>, &'a DeviceState)>;

/// Makes the devices in an empty registry. Blocks: it opens the devices beneath, remote exports at once. Problems are
/// logged and returned.
pub(crate) fn restore(
    registry: &Registry,
    lost: &LostDevices,
    state: &State,
    maker: &(dyn Maker + Sync),
) -> Vec<Problem> {
    let mut problems = Vec::new();
    let mut made = create_all(registry, state, &mut problems);
    let order = in_order(state);
    let bringing = Bringing { registry, lost, maker, leave: &|_| false };
    let held = held(&made);
    // The devices of one wave do not stand on each other; an inactive table may name any device.
    for Wave { remote, rest } in waves(state, &order) {
        problems.extend(bringing.tables(&mut made, &rest));
        problems.extend(together(&mut made, &remote, &|made, minor| bringing.tables(made, &[minor])));
    }
    let Wave { remote, rest } = Wave::of(state, &order);
    problems.extend(bringing.settle(&made, &rest));
    problems.extend(together(&mut made, &remote, &|made, minor| bringing.settle(made, &[minor])));
    problems.extend(bringing.hold(&made, &order, &held));
    tell(state, &problems, 0);
    problems
}

/// Makes the devices in an empty registry. Those above remote exports are only created; their entries are returned, in
/// groups.
pub(crate) fn restore_what_answers(
    registry: &Registry,
    lost: &LostDevices,
    state: &State,
) -> (Vec<Problem>, Vec<Group>) {
    let mut problems = Vec::new();
    let mut made = create_all(registry, state, &mut problems);
    let order = in_order(state);
    let groups = put_off(lost, &mut made, &order, &order::groups(state));
    problems.extend(bring_up_all(registry, lost, &mut made, &order, &FromDisk::new(), &|_| false));
    tell(state, &problems, groups.iter().map(Vec::len).sum());
    (problems, groups)
}

fn create_all<'a>(registry: &Registry, state: &'a State, problems: &mut Vec<Problem>) -> Made<'a> {
    let mut made = Made::new();
    for device in &state.devices {
        match registry.create(&device.name, &device.uuid, Some(device.minor)) {
            Ok(md) => drop(made.insert(device.minor, (md, device))),
            Err(e) => problems.push(Problem::new(format!("{} is not restored: {}", device.name, e.message))),
        }
    }
    made
}

fn tell(state: &State, problems: &[Problem], late: usize) {
    problems.iter().for_each(|problem| error!("{}", problem.text));
    if !state.devices.is_empty() {
        let (all, lost) = (state.devices.len(), problems.len());
        info!("{all} devices restored, with {lost} problems; {late} of them are above remote exports, and follow");
    }
}

/// A step for one device, which is alone in its list.
type Part<'a> = &'a (dyn Fn(&mut Made<'_>, u32) -> Vec<Problem> + Sync);

/// Does the step for all of them at once, each on a thread as long as there are threads. `made` has all devices again
/// afterwards.
fn together(made: &mut Made<'_>, minors: &[u32], part: Part<'_>) -> Vec<Problem> {
    let devices = minors.iter().filter_map(|minor| made.remove_entry(minor));
    let left = Mutex::new(devices.collect::<VecDeque<_>>());
    let next = || left.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
    let work = || {
        let (mut all, mut problems) = (Made::new(), Vec::new());
        while let Some((minor, device)) = next() {
            let mut alone = Made::from([(minor, device)]);
            problems.extend(part(&mut alone, minor));
            all.append(&mut alone);
        }
        (all, problems)
    };
    std::thread::scope(|scope| {
        // This thread is one of them, so that all is done without another.
        let threads = (1..minors.len().min(THREADS))
            .filter_map(|_| std::thread::Builder::new().name("udm-remote".into()).spawn_scoped(scope, work).ok());
        let threads: Vec<_> = threads.collect();
        let mut done = vec![work()];
        done.extend(threads.into_iter().map(|thread| thread.join().unwrap_or_else(|panic| resume_unwind(panic))));
        let mut problems = Vec::new();
        for (mut devices, more) in done {
            made.append(&mut devices);
            problems.extend(more);
        }
        problems
    })
}

/// Restores existing devices, in that order. `leave`: whether to leave one as it is after all; it is removed from
/// `made`.
pub(crate) fn bring_up_all(
    registry: &Registry,
    lost: &LostDevices,
    made: &mut Made<'_>,
    order: &[u32],
    maker: &(dyn Maker + Sync),
    leave: Leave<'_>,
) -> Vec<Problem> {
    let bringing = Bringing { registry, lost, maker, leave };
    let held = held(made);
    let mut problems = bringing.tables(made, order);
    problems.extend(bringing.settle(made, order));
    problems.extend(bringing.hold(made, order, &held));
    problems
}

/// Whether a device is to be left as it is.
type Leave<'a> = &'a (dyn Fn(&Arc<MappedDevice>) -> bool + Sync);

/// Those that are suspended when all is done.
fn held(made: &Made<'_>) -> BTreeSet<u32> {
    let held = made.iter().filter(|(_, (md, device))| device.suspended || md.info().suspended);
    held.map(|(minor, _)| *minor).collect()
}

/// Restores devices, step by step: all tables first, and suspensions last.
struct Bringing<'a> {
    registry: &'a Registry,
    lost: &'a LostDevices,
    maker: &'a (dyn Maker + Sync),
    leave: Leave<'a>,
}

impl Bringing<'_> {
    /// Their active tables.
    fn tables(&self, made: &mut Made<'_>, order: &[u32]) -> Vec<Problem> {
        let mut problems = Vec::new();
        for minor in order {
            let Some((md, device)) = made.get_mut(minor) else { continue };
            if (self.leave)(md) {
                made.remove(minor);
                continue;
            }
            let Some(table) = &device.active else { continue };
            if let Err(NotUp { reason, loaded }) = bring_up(md, device, table, self.maker) {
                if !loaded && (self.leave)(md) {
                    made.remove(minor);
                    continue;
                }
                let text = format!("{} comes back as error: {reason}", device.name);
                problems.push(Problem { text, known: device.lost.is_some() });
                replace_by_error(self.registry, md, device, table, &mut problems);
                self.lost.add(md, Lost { reason, was: table.clone() });
            }
        }
        problems
    }

    /// Their options, and their inactive tables.
    fn settle(&self, made: &Made<'_>, order: &[u32]) -> Vec<Problem> {
        let mut problems = Vec::new();
        for minor in order {
            let Some((md, device)) = made.get(minor) else { continue };
            settings(md, device, &mut problems);
            let Some(table) = &device.inactive else { continue };
            // A transient snapshot's successor has nothing to take over; unused memory is as good as new.
            let successor = self.lost.of(md).is_some() && table.transient;
            let loaded = match successor {
                true => Err("the data of the active one is lost".into()),
                false => load(md, table, self.maker, false),
            };
            if let Err(reason) = loaded {
                problems.push(Problem::new(format!("{}'s inactive table is not restored: {reason}", device.name)));
            }
        }
        problems
    }

    /// Suspends devices again, and removes those with a deferred removal.
    fn hold(&self, made: &Made<'_>, order: &[u32], held: &BTreeSet<u32>) -> Vec<Problem> {
        let mut problems = Vec::new();
        // From the top, as usual for a stack.
        for minor in order.iter().rev() {
            let Some((md, device)) = made.get(minor) else { continue };
            if held.contains(minor)
                && device.active.is_some()
                && let Err(e) = md.suspend(SuspendOptions::WITHOUT_FREEZING, &|| false)
            {
                problems.push(Problem::new(format!("{} is not suspended again: {}", device.name, e.message)));
            }
            // Its holder was a client, which is gone, or a table above, with which it will go.
            if device.deferred_remove && self.registry.remove(md, true).is_ok() {
                info!("{} is removed at its last close, as asked before", device.name);
            }
        }
        problems
    }
}

/// Gives a lost device its own table again, or leaves it as it is.
pub(crate) fn bring_back(md: &Arc<MappedDevice>, device: &DeviceState, maker: &dyn Maker) -> Result<(), String> {
    let table = device.active.as_ref().ok_or("it had no table")?;
    if let Err(NotUp { reason, loaded }) = bring_up(md, device, table, maker) {
        if loaded {
            md.clear();
        }
        return Err(reason);
    }
    let mut problems = Vec::new();
    settings(md, device, &mut problems);
    problems.iter().for_each(|problem| error!("{}", problem.text));
    Ok(())
}

/// Why a device is not what it was.
struct NotUp {
    reason: String,
    /// It has the table, and could not be resumed with it.
    loaded: bool,
}

/// Restores the device.
fn bring_up(md: &Arc<MappedDevice>, device: &DeviceState, table: &TableState, maker: &dyn Maker) -> Result<(), NotUp> {
    let not_loaded = |reason: String| NotUp { reason, loaded: false };
    if let Some(reason) = &device.lost
        && (table.transient || table.lines.iter().any(|line| is_snapshot(line)))
    {
        // Meanwhile its origin may have been written, and the snapshot would show that data as its own.
        return Err(not_loaded(reason.clone()));
    }
    if table.transient && !maker.has_memory() {
        return Err(not_loaded("its data was in the memory of a daemon that has ended".into()));
    }
    load(md, table, maker, true).map_err(not_loaded)?;
    md.resume(SuspendOptions::default(), &|| false).map_err(|e| NotUp { reason: e.message, loaded: true })
}

fn is_snapshot(line: &str) -> bool {
    TableLine::parse(line).is_ok_and(|line| line.target == "snapshot" || line.target == "snapshot-merge")
}

fn load(md: &Arc<MappedDevice>, table: &TableState, maker: &dyn Maker, live: bool) -> Result<(), String> {
    if table.secret && !maker.has_memory() {
        return Err(format!("{HIDDEN}: load it again"));
    }
    let loaded = lines_of(table).and_then(|lines| maker.load(md, &lines, table.read_only, live).map_err(|e| e.message));
    loaded.map_err(|why| if table.secret { HIDDEN.to_owned() } else { why })
}

fn lines_of(table: &TableState) -> Result<Vec<TableLine>, String> {
    table.lines.iter().map(|line| TableLine::parse(line).map_err(|e| format!("{e} in {line:?}"))).collect()
}

/// Gives the device an error table of the same size. A table that was tried before is removed first: tables of some
/// targets cannot be replaced by others.
fn replace_by_error(
    registry: &Registry,
    md: &mut Arc<MappedDevice>,
    device: &DeviceState,
    table: &TableState,
    problems: &mut Vec<Problem>,
) {
    let instead = || {
        registry.remove(md, false).map_err(|e| e.message)?;
        let new = registry.create(&device.name, &device.uuid, Some(device.minor)).map_err(|e| e.message)?;
        let lines = lines_of(table)?;
        let len = lines.iter().try_fold(Sectors::ZERO, |sum, line| sum.checked_add(line.len));
        let len = len.filter(|len| !len.is_zero()).ok_or("its size is not known")?;
        let (start, target) = (udm_base::Sector::ZERO, "error".to_owned());
        let error = TableLine { start, len, target, params: String::new() };
        new.load(&[error], table.read_only, Path::new("/")).map_err(|e| e.message)?;
        new.resume(SuspendOptions::default(), &|| false).map_err(|e| e.message)?;
        Ok::<_, String>(new)
    };
    match instead() {
        Ok(new) => *md = new,
        Err(e) => {
            problems.push(Problem::new(format!("{} has no table: {e}", device.name)));
            if let Some(new) = registry.by_name(&device.name) {
                *md = new;
            }
        }
    }
}

fn settings(md: &Arc<MappedDevice>, device: &DeviceState, problems: &mut Vec<Problem>) {
    md.set_clone_always(device.clone_always);
    md.set_compile(device.compile);
    md.set_read_ahead(device.read_ahead);
    md.set_poll_budget(device.poll_budget);
    // A device begins with it on, as far as those beneath it can.
    if !device.io_poll
        && let Err(e) = md.set_io_poll(false)
    {
        problems.push(Problem::new(format!("{}'s io_poll is not restored: {}", device.name, e.message)));
    }
    let (cylinders, heads, sectors, start) = device.geometry;
    if let Err(e) = md.set_geometry(Geometry { cylinders, heads, sectors, start }) {
        problems.push(Problem::new(format!("{}'s geometry is not restored: {}", device.name, e.message)));
    }
    for (key, value) in &device.options {
        // The table that took it may have been replaced since, or is lost.
        if md.set_target_option(key, value).is_none() {
            warn!("{}: {key}={value} is not restored: its table does not take it", device.name);
        }
    }
}

/// Devices that are made together, those beneath first.
pub(crate) type Group = Vec<(Arc<MappedDevice>, DeviceState)>;

/// Notes what is to be made later, and returns it in groups.
fn put_off(lost: &LostDevices, made: &mut Made<'_>, order: &[u32], groups: &[BTreeSet<u32>]) -> Vec<Group> {
    let mut all = Vec::new();
    for group in groups {
        let of = order.iter().filter(|minor| group.contains(minor));
        let devices: Group = of.filter_map(|minor| made.remove(minor)).map(|(md, d)| (md, d.clone())).collect();
        devices.iter().for_each(|(md, state)| lost.late().put_off(md, state));
        all.push(devices);
    }
    all.retain(|group| !group.is_empty());
    all
}
