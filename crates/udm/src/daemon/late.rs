//! Devices that are made again after the daemon has begun: those above another machine or process, which may not
//! answer.
//!
//! A client must not wait for a server that nobody has asked for, and the daemon not either. So what stands on a remote
//! export is opened on threads beside; until then the device is there without a table, and the state keeps what it is
//! to be. Devices that belong together are made by one thread, as [`restore`](super::restore) makes the others.
//!
//! # Invariants
//! - Nothing is served from a device before it is what it was: a client that is told other limits or flags keeps to
//!   them.
//! - A snapshot and whoever writes to its origin are made together: what an origin is sent while a snapshot is away
//!   would be missing there.
//! - What a user does with such a device counts: one that is removed, or given a table, is left alone.

use super::Daemon;
use super::lost::LostDevices;
use super::restore::{FromDisk, Made, Maker, THREADS, bring_back, bring_up_all};
use super::state::{DeviceState, State, What};
use super::watchdog::Resting;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tracing::{debug, error, info};
use udm_base::Errno;
use udm_core::{Error, MappedDevice, Registry, TableLine, TableSlot};
use udm_nbd::uri::Uri;

/// How often a device is tried again whose server did not answer.
const AGAIN: Duration = Duration::from_secs(30);

/// Devices that are made together, those beneath first.
pub(crate) type Group = Vec<(Arc<MappedDevice>, DeviceState)>;

/// The minors of the devices that are made later, in groups.
pub(crate) fn groups(state: &State) -> Vec<BTreeSet<u32>> {
    let links = Links::of(state);
    let mut late: BTreeSet<u32> = state.devices.iter().filter(|d| is_remote(d)).map(|d| d.minor).collect();
    let mut next: VecDeque<u32> = late.iter().copied().collect();
    while let Some(minor) = next.pop_front() {
        next.extend(links.drawn_in(minor).filter(|other| late.insert(*other)));
    }
    let mut left = late.clone();
    let mut groups = Vec::new();
    while let Some(first) = left.pop_first() {
        let (mut group, mut next) = (BTreeSet::from([first]), vec![first]);
        while let Some(minor) = next.pop() {
            let near = links.drawn_in(minor).chain(links.beneath(minor)).filter(|other| left.remove(other));
            let near: Vec<u32> = near.collect();
            group.extend(&near);
            next.extend(near);
        }
        groups.push(group);
    }
    groups
}

/// Which device leads to which.
struct Links {
    beneath: BTreeMap<u32, Vec<u32>>,
    above: BTreeMap<u32, Vec<u32>>,
    /// The origins of a device's snapshots, or whose snapshots it has written to, as tables name them; and the way
    /// back.
    origins: BTreeMap<u32, Vec<String>>,
    sharers: BTreeMap<String, Vec<u32>>,
}

impl Links {
    fn of(state: &State) -> Self {
        let mut links = Self {
            beneath: BTreeMap::new(),
            above: BTreeMap::new(),
            origins: BTreeMap::new(),
            sharers: BTreeMap::new(),
        };
        for device in &state.devices {
            let beneath = super::restore::named_by(device);
            beneath.iter().for_each(|below| links.above.entry(*below).or_default().push(device.minor));
            links.beneath.insert(device.minor, beneath);
            for line in lines_of(device).filter(|line| line.target.starts_with("snapshot")) {
                let Some(origin) = line.params.split_ascii_whitespace().next() else { continue };
                links.origins.entry(device.minor).or_default().push(origin.to_owned());
                links.sharers.entry(origin.to_owned()).or_default().push(device.minor);
            }
        }
        links
    }

    /// The devices that cannot be there before this one is.
    fn drawn_in(&self, minor: u32) -> impl Iterator<Item = u32> {
        let origins = self.origins.get(&minor).into_iter().flatten();
        let sharers = origins.filter_map(|origin| self.sharers.get(origin)).flatten();
        self.above.get(&minor).into_iter().flatten().chain(sharers).copied()
    }

    fn beneath(&self, minor: u32) -> impl Iterator<Item = u32> {
        self.beneath.get(&minor).into_iter().flatten().copied()
    }
}

/// The lines of its tables.
fn lines_of(device: &DeviceState) -> impl Iterator<Item = TableLine> {
    let tables = [&device.active, &device.inactive].into_iter().flatten();
    tables.flat_map(|table| &table.lines).filter_map(|line| TableLine::parse(line).ok())
}

/// Whether a table of the device names a remote export itself.
pub(super) fn is_remote(device: &DeviceState) -> bool {
    lines_of(device).any(|line| line.params.split_ascii_whitespace().any(|word| word.parse::<Uri>().is_ok()))
}

/// The devices that are still to be made, by their minors: what the state has of them.
#[derive(Default)]
pub(crate) struct LateDevices(Mutex<BTreeMap<u32, Late>>);

struct Late {
    md: Arc<MappedDevice>,
    state: DeviceState,
    /// A table that it has is ours.
    making: bool,
}

impl LateDevices {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<u32, Late>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the device is to be, if that is still to come.
    pub(crate) fn of(&self, md: &MappedDevice) -> Option<DeviceState> {
        let all = self.lock();
        let late = all.get(&md.devt().minor).filter(|late| std::ptr::eq(&raw const *late.md, md))?;
        (late.making || !has_table(md)).then(|| late.state.clone())
    }

    fn making(&self, minor: u32) {
        self.lock().entry(minor).and_modify(|late| late.making = true);
    }

    fn done(&self, minor: u32) {
        self.lock().remove(&minor);
    }

    /// The names of all.
    pub(crate) fn names(&self) -> Vec<String> {
        self.lock().values().map(|late| late.state.name.clone()).collect()
    }
}

fn has_table(md: &MappedDevice) -> bool {
    [TableSlot::Active, TableSlot::Inactive].into_iter().any(|slot| md.table(slot).is_some())
}

/// Whether somebody has removed the device or given it a table meanwhile.
fn is_taken(registry: &Registry, md: &Arc<MappedDevice>) -> bool {
    let there = registry.by_devt(md.devt()).is_some_and(|other| Arc::ptr_eq(&other, md));
    !there || has_table(md)
}

/// Makes tables over devices that are not lost. One above a lost one is lost as well: else it would hold that one, with
/// the limits of an error table, when it comes back.
struct AboveOthers<'a> {
    daemon: &'a Daemon,
    from: FromDisk<'a>,
}

impl Maker for AboveOthers<'_> {
    fn load(&self, md: &Arc<MappedDevice>, lines: &[TableLine], read_only: bool, live: bool) -> Result<(), Error> {
        let words = lines.iter().flat_map(|line| line.params.split_ascii_whitespace());
        for beneath in words.filter_map(|word| self.daemon.registry.by_devt(word.parse().ok()?)) {
            if self.daemon.lost.of(&beneath).is_some() {
                return Err(Error::new(Errno::EIO, format!("{} beneath it is lost", beneath.device_name())));
            }
        }
        self.from.load(md, lines, read_only, live)
    }

    fn has_memory(&self) -> bool {
        false
    }
}

impl Daemon {
    /// Makes the devices that were left, beside all else. Does not wait for it.
    pub(super) fn open_late(self: &Arc<Self>, groups: Vec<Group>) {
        let threads = groups.len().min(THREADS);
        let left = Arc::new(Mutex::new(VecDeque::from(groups)));
        for _ in 0..threads {
            let (daemon, left) = (self.clone(), left.clone());
            let work = move || {
                let next = || left.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
                let mut unanswered = Vec::new();
                while let Some(group) = next() {
                    unanswered.extend(daemon.make_late(&group));
                }
                let resting = Resting::of(&daemon);
                drop(daemon);
                try_again(&resting, unanswered);
            };
            if let Err(e) = self.registry.domain().executor().spawn("udm-late", Box::new(work)) {
                error!("devices above remote exports are not made again: {e}");
            }
        }
    }

    /// Makes a group. Returns what is to be tried again.
    fn make_late(&self, group: &Group) -> Group {
        let late = self.lost.late();
        let ends = || self.ended.load(Ordering::Acquire);
        let leave = |md: &Arc<MappedDevice>| {
            let minor = md.devt().minor;
            if ends() {
                // The state still has it as it was.
                return true;
            }
            if is_taken(&self.registry, md) {
                late.done(minor);
                return true;
            }
            late.making(minor);
            false
        };
        let cancel = |md: &Arc<MappedDevice>| ends() || is_taken(&self.registry, md);
        let maker = AboveOthers { daemon: self, from: FromDisk::unless(&cancel) };
        let order: Vec<u32> = group.iter().map(|(_, state)| state.minor).collect();
        let mut made: Made<'_> = group.iter().map(|(md, state)| (state.minor, (md.clone(), state))).collect();
        let under_way: Vec<_> =
            group.iter().map(|(_, state)| self.underway.begin("RESTORE", &state.name, None)).collect();
        let problems = bring_up_all(&self.registry, &self.lost, &mut made, &order, &maker, &leave);
        problems.iter().for_each(|problem| error!("{}", problem.text));
        drop(under_way);
        let mut again = Group::new();
        for minor in order.iter().filter(|minor| made.contains_key(minor)) {
            let (md, state) = &made[minor];
            late.done(*minor);
            let name = md.device_name();
            if let Some(node) = state.node
                && let Err(e) = self.nodes.bring_back(&name, node.kind, node.mapper)
            {
                error!("{name} has no node again: {}", e.message);
            }
            match self.lost.of(md) {
                Some(_) => again.push((md.clone(), (*state).clone())),
                None => info!("{name} is there again"),
            }
        }
        let _ = self.changed(What::Everything);
        again
    }

    /// Gives a lost device its table, if what lies beneath can be opened. Whether it is still lost; not one that has
    /// got another table meanwhile.
    fn is_still_lost(&self, md: &Arc<MappedDevice>, state: &DeviceState) -> bool {
        let is_lost = |md: &Arc<MappedDevice>| self.lost.of(md).is_some() && md.table(TableSlot::Inactive).is_none();
        if !is_lost(md) {
            return false;
        }
        // Who has it open was told the limits of an error table.
        if md.info().open_count > 0 {
            return true;
        }
        let cancel = |md: &Arc<MappedDevice>| self.ended.load(Ordering::Acquire) || !is_lost(md);
        let maker = AboveOthers { daemon: self, from: FromDisk::unless(&cancel) };
        match bring_back(md, state, &maker) {
            Ok(()) => info!("{} is there again", state.name),
            Err(why) => debug!("{} is still lost: {why}", state.name),
        }
        self.lost.of(md).is_some()
    }
}

/// Tries lost devices again as long as there are some. Not snapshots, which have missed what their origins were sent.
fn try_again(resting: &Resting, mut left: Group) {
    left.retain(|(_, state)| !lines_of(state).any(|line| line.target.starts_with("snapshot")));
    while !left.is_empty() {
        let Some(daemon) = resting.rest(AGAIN) else { return };
        if daemon.is_being_replaced() {
            continue;
        }
        let before = left.len();
        left.retain(|(md, state)| daemon.is_still_lost(md, state));
        if left.len() < before {
            let _ = daemon.changed(What::Everything);
        }
    }
}

/// Notes what is to be made later, and returns it in groups.
pub(crate) fn put_off(lost: &LostDevices, made: &mut Made<'_>, order: &[u32], groups: &[BTreeSet<u32>]) -> Vec<Group> {
    let mut all = Vec::new();
    for group in groups {
        let of = order.iter().filter(|minor| group.contains(minor));
        let devices: Group = of.filter_map(|minor| made.remove(minor)).map(|(md, d)| (md, d.clone())).collect();
        let late = devices.iter().map(|(md, state)| Late { md: md.clone(), state: state.clone(), making: false });
        lost.late().lock().extend(late.map(|late| (late.state.minor, late)));
        all.push(devices);
    }
    all.retain(|group| !group.is_empty());
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stands_on_remote_exports_is_late() {
        #[track_caller]
        fn check(lines: &[(u32, &str)], expect: &[&[u32]]) {
            let device = |(minor, line): &(u32, &str)| {
                format!(
                    r#"{{"name":"d{minor}","uuid":"","minor":{minor},"suspended":false,"deferred_remove":false,
                    "clone_always":false,"compile":true,"read_ahead":null,"geometry":[0,0,0,0],"options":{{}},
                    "active":{{"read_only":false,"transient":false,"lines":["{line}"]}},"inactive":null,"lost":null}}"#
                )
            };
            let devices: Vec<_> = lines.iter().map(device).collect();
            let text = format!(r#"{{"version":2,"devices":[{}],"exports":[]}}"#, devices.join(","));
            let found: Vec<Vec<u32>> =
                groups(&State::parse(text.as_bytes()).unwrap()).into_iter().map(|g| g.into_iter().collect()).collect();
            assert_eq!(found, expect, "{lines:?}");
        }
        check(&[(0, "0 8 zero"), (1, "0 8 linear /dev/x 0"), (2, "0 8 linear 600:0 0")], &[]);
        check(
            &[(0, "0 8 linear nbd://a/x 0"), (1, "0 8 zero"), (2, "0 8 linear nbd+unix:///x?socket=/s 0")],
            &[&[0], &[2]],
        );
        // Whatever stands on it, and what that joins.
        check(&[(0, "0 8 linear 600:2 0"), (1, "0 8 linear 600:0 0"), (2, "0 8 linear nbd://a 0")], &[&[0, 1, 2]]);
        check(
            &[(0, "0 8 linear nbd://a 0"), (1, "0 8 linear nbd://b 0"), (2, "0 8 striped 2 8 600:0 0 600:1 0")],
            &[&[0, 1, 2]],
        );
        // Beneath a late one there is nothing to wait for; but an origin's writers wait for its snapshots.
        check(&[(0, "0 8 linear /dev/x 0"), (1, "0 8 striped 2 8 600:0 0 nbd://a 0")], &[&[1]]);
        check(
            &[
                (0, "0 8 linear /dev/x 0"),
                (1, "0 8 snapshot-origin 600:0"),
                (2, "0 8 snapshot 600:0 nbd://a P 8"),
                (3, "0 8 linear 600:1 0"),
                (4, "0 8 snapshot 600:9 /dev/c P 8"),
            ],
            &[&[1, 2, 3]],
        );
    }
}
