//! Makes the devices of a state again.
//!
//! # Invariants
//! - Whatever becomes of one device, the others come up.
//! - A device never comes back with less than it held: where its data was in memory, or cannot be reached, it is an
//!   error table of its size, and its own table is kept in the state.
//! - Nothing is suspended before everything is up: a constructor above may read through any device.

use super::late::{self, Group};
use super::lost::{Lost, LostDevices};
use super::secret::HIDDEN;
use super::state::{DeviceState, State, TableState};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::panic::resume_unwind;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tracing::{error, info, warn};
use udm_base::{DevT, Errno, Sectors};
use udm_core::{Error, Geometry, LoadOptions, MAJOR, MappedDevice, Registry, SuspendOptions, TableLine};

/// What went wrong with a device.
pub(crate) struct Problem {
    /// For people.
    pub(crate) text: String,
    /// It was so before: the device was lost already.
    pub(crate) known: bool,
}

impl Problem {
    fn new(text: String) -> Self {
        Self { text, known: false }
    }
}

/// What makes a table; another process's memory may be put beneath it.
pub(crate) trait Maker {
    /// Loads a table of the device. `live`: it is the one that was active.
    fn load(&self, md: &Arc<MappedDevice>, lines: &[TableLine], read_only: bool, live: bool) -> Result<(), Error>;

    /// Whether what is in a process's memory comes along.
    fn has_memory(&self) -> bool;
}

/// How long what lies beneath may still be locked, all devices together: by a process that is just ending. The kernel
/// closes its files one after the other, and those last that had requests under way.
const LOCKED: Duration = Duration::from_secs(5);

/// Devices above remote exports that are made at a time.
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
            let options = LoadOptions { read_only, cwd: Path::new("/"), cancel: &|| (self.cancel)(md), secret: false };
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

/// Devices that there are, by their minors, and what they are to be.
pub(crate) type Made<'a> = BTreeMap<u32, (Arc<MappedDevice>, &'a DeviceState)>;

/// Makes the devices in a registry that has none. Blocks: it opens what lies beneath, remote exports at once. What goes
/// wrong is told in the log, and in the answer.
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
    // Of one wave none stands on another; an inactive table may name any.
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

/// Makes the devices in a registry that has none, but for those above remote exports, which are only there: what they
/// are to be is returned, in groups.
pub(crate) fn restore_what_answers(
    registry: &Registry,
    lost: &LostDevices,
    state: &State,
) -> (Vec<Problem>, Vec<Group>) {
    let mut problems = Vec::new();
    let mut made = create_all(registry, state, &mut problems);
    let order = in_order(state);
    let groups = late::put_off(lost, &mut made, &order, &late::groups(state));
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

/// Devices that do not stand on each other.
struct Wave {
    /// Those whose own tables name remote exports.
    remote: Vec<u32>,
    rest: Vec<u32>,
}

impl Wave {
    fn of(state: &State, minors: &[u32]) -> Self {
        let remote: BTreeSet<u32> = state.devices.iter().filter(|d| late::is_remote(d)).map(|d| d.minor).collect();
        let (remote, rest) = minors.iter().partition(|minor| remote.contains(minor));
        Self { remote, rest }
    }
}

/// All devices, in waves of which each stands on those before. `order`: each after those beneath.
fn waves(state: &State, order: &[u32]) -> Vec<Wave> {
    let beneath: BTreeMap<u32, Vec<u32>> = state.devices.iter().map(|d| (d.minor, named_by(d))).collect();
    let mut levels: BTreeMap<u32, usize> = BTreeMap::new();
    let mut waves: Vec<Vec<u32>> = Vec::new();
    for minor in order {
        let below = beneath.get(minor).into_iter().flatten().filter_map(|below| levels.get(below));
        let level = below.max().map_or(0, |level| level + 1);
        levels.insert(*minor, level);
        waves.resize_with(waves.len().max(level + 1), Vec::new);
        waves[level].push(*minor);
    }
    waves.iter().map(|wave| Wave::of(state, wave)).collect()
}

/// What is done for a device, which is alone in its list.
type Part<'a> = &'a (dyn Fn(&mut Made<'_>, u32) -> Vec<Problem> + Sync);

/// Does it for all of them at once, each on a thread as long as there are some. `made` has all devices again
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

/// Makes devices that there are what they were, in that order. `leave`: whether one is to be left as it is after all;
/// it goes from `made`.
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

/// Makes devices what they were, part by part: all tables before anything else, and suspended is what was when all is
/// done.
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

    /// What was set, and their inactive tables.
    fn settle(&self, made: &Made<'_>, order: &[u32]) -> Vec<Problem> {
        let mut problems = Vec::new();
        for minor in order {
            let Some((md, device)) = made.get(minor) else { continue };
            settings(md, device, &mut problems);
            let Some(table) = &device.inactive else { continue };
            // A transient snapshot's successor has nothing to inherit; memory that was never used is as good as new.
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

    /// Suspends again, and removes what was to go.
    fn hold(&self, made: &Made<'_>, order: &[u32], held: &BTreeSet<u32>) -> Vec<Problem> {
        let mut problems = Vec::new();
        // From the top, as who suspends a stack does it.
        for minor in order.iter().rev() {
            let Some((md, device)) = made.get(minor) else { continue };
            if held.contains(minor)
                && device.active.is_some()
                && let Err(e) = md.suspend(SuspendOptions::default(), &|| false)
            {
                problems.push(Problem::new(format!("{} is not suspended again: {}", device.name, e.message)));
            }
            // What held it was a client, which is gone, or a table above, with which it goes.
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

/// Makes the device what it was.
fn bring_up(md: &Arc<MappedDevice>, device: &DeviceState, table: &TableState, maker: &dyn Maker) -> Result<(), NotUp> {
    let not_loaded = |reason: String| NotUp { reason, loaded: false };
    if let Some(reason) = &device.lost
        && (table.transient || table.lines.iter().any(|line| is_snapshot(line)))
    {
        // While it was away its origin may have been written to, and it would show that as its own.
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

/// A device of the same size that fails whatever is asked of it. What was tried before is made away with first: a table
/// of some targets is not replaced by others.
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
    // On is what a device begins with, as far as those beneath it can.
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

/// The minors of the devices, each after those that its tables name.
fn in_order(state: &State) -> Vec<u32> {
    let beneath: BTreeMap<u32, Vec<u32>> = state.devices.iter().map(|d| (d.minor, named_by(d))).collect();
    let mut order = Vec::new();
    // A table cannot lead back to itself; a file that says so is none of ours, and any order is as good.
    let mut seen = std::collections::BTreeSet::new();
    for minor in beneath.keys() {
        let mut path = vec![(*minor, 0)];
        while let Some((at, next)) = path.pop() {
            if next == 0 && !seen.insert(at) {
                continue;
            }
            match beneath.get(&at).and_then(|below| below.get(next)) {
                Some(below) => path.extend([(at, next + 1), (*below, 0)]),
                None => order.push(at),
            }
        }
    }
    order
}

/// The minors of udm's own devices that the active table names. More than there are does no harm.
pub(super) fn named_by(device: &DeviceState) -> Vec<u32> {
    let words = device.active.iter().flat_map(|table| &table.lines).flat_map(|line| line.split_ascii_whitespace());
    let numbers = words.filter_map(|word| word.parse::<DevT>().ok());
    numbers.filter(|devt| devt.major == MAJOR).map(|devt| devt.minor).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remote_devices_of_a_wave_do_not_stand_on_each_other() {
        let device = |(minor, line): (u32, &str)| {
            format!(
                r#"{{"name":"d{minor}","uuid":"","minor":{minor},"suspended":false,"deferred_remove":false,
                "clone_always":false,"compile":true,"read_ahead":null,"geometry":[0,0,0,0],"options":{{}},
                "active":{{"read_only":false,"transient":false,"lines":["{line}"]}},"inactive":null,"lost":null}}"#
            )
        };
        let lines = [
            (0, "0 8 striped 2 8 600:1 0 600:2 0"),
            (1, "0 8 linear nbd://a 0"),
            (2, "0 8 linear nbd://b 0"),
            (3, "0 8 zero"),
            (4, "0 8 snapshot 600:0 nbd://c P 8"),
        ];
        let text = format!(r#"{{"version":2,"devices":[{}],"exports":[]}}"#, lines.map(device).join(","));
        let state = State::parse(text.as_bytes()).unwrap();
        let found: Vec<_> = waves(&state, &in_order(&state)).into_iter().map(|w| (w.remote, w.rest)).collect();
        assert_eq!(found, [(vec![1, 2], vec![3]), (vec![], vec![0]), (vec![4], vec![])]);
    }

    #[test]
    fn what_is_beneath_comes_first() {
        let device = |minor: u32, line: &str| {
            format!(
                r#"{{"name":"d{minor}","uuid":"","minor":{minor},"suspended":false,"deferred_remove":false,
                "clone_always":false,"compile":true,"read_ahead":null,"geometry":[0,0,0,0],"options":{{}},
                "active":{{"read_only":false,"transient":false,"lines":["{line}"]}},"inactive":null,"lost":null}}"#
            )
        };
        let check = |lines: &[(u32, &str)], expect: &[u32]| {
            let devices: Vec<_> = lines.iter().map(|(minor, line)| device(*minor, line)).collect();
            let text = format!(r#"{{"version":2,"devices":[{}],"exports":[]}}"#, devices.join(","));
            assert_eq!(in_order(&State::parse(text.as_bytes()).unwrap()), expect, "{lines:?}");
        };
        check(&[], &[]);
        check(&[(0, "0 8 zero"), (1, "0 8 linear 600:0 0")], &[0, 1]);
        check(&[(0, "0 8 linear 600:7 0"), (3, "0 8 zero"), (7, "0 8 linear 600:3 0")], &[3, 7, 0]);
        check(&[(0, "0 8 striped 2 8 600:2 0 600:1 0"), (1, "0 8 linear 600:2 0"), (2, "0 8 zero")], &[2, 1, 0]);
        // Not ours, not there, and in a circle.
        check(&[(0, "0 8 linear 8:1 0"), (1, "0 8 linear 600:9 0")], &[0, 9, 1]);
        check(&[(0, "0 8 linear 600:1 0"), (1, "0 8 linear 600:0 0")], &[1, 0]);
    }
}
