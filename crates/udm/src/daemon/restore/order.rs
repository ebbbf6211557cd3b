//! Which devices stand on which, as a state tells: what is made before what, what at once, and what together.

use crate::daemon::state::{DeviceState, State};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use udm_base::DevT;
use udm_core::{MAJOR, TableLine};
use udm_nbd::uri::Uri;

/// The minors of the devices, each after those that its tables name.
pub(super) fn in_order(state: &State) -> Vec<u32> {
    let beneath: BTreeMap<u32, Vec<u32>> = state.devices.iter().map(|d| (d.minor, named_by(d))).collect();
    let mut order = Vec::new();
    // A table cannot lead back to itself; a file that says so is none of ours, and any order is as good.
    let mut seen = BTreeSet::new();
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
fn named_by(device: &DeviceState) -> Vec<u32> {
    let words = device.active.iter().flat_map(|table| &table.lines).flat_map(|line| line.split_ascii_whitespace());
    let numbers = words.filter_map(|word| word.parse::<DevT>().ok());
    numbers.filter(|devt| devt.major == MAJOR).map(|devt| devt.minor).collect()
}

/// Devices that do not stand on each other.
pub(super) struct Wave {
    /// Those whose own tables name remote exports.
    pub(super) remote: Vec<u32>,
    pub(super) rest: Vec<u32>,
}

impl Wave {
    pub(super) fn of(state: &State, minors: &[u32]) -> Self {
        let remote: BTreeSet<u32> = state.devices.iter().filter(|d| is_remote(d)).map(|d| d.minor).collect();
        let (remote, rest) = minors.iter().partition(|minor| remote.contains(minor));
        Self { remote, rest }
    }
}

/// All devices, in waves of which each stands on those before. `order`: each after those beneath.
pub(super) fn waves(state: &State, order: &[u32]) -> Vec<Wave> {
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

/// The minors of the devices that are made later, in groups.
pub(super) fn groups(state: &State) -> Vec<BTreeSet<u32>> {
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
            let beneath = named_by(device);
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
pub(crate) fn lines_of(device: &DeviceState) -> impl Iterator<Item = TableLine> {
    let tables = [&device.active, &device.inactive].into_iter().flatten();
    tables.flat_map(|table| &table.lines).filter_map(|line| TableLine::parse(line).ok())
}

/// Whether a table of the device names a remote export itself.
fn is_remote(device: &DeviceState) -> bool {
    lines_of(device).any(|line| line.params.split_ascii_whitespace().any(|word| word.parse::<Uri>().is_ok()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Devices with these active tables, by their minors.
    fn state(lines: &[(u32, &str)]) -> State {
        let device = |(minor, line): &(u32, &str)| {
            format!(
                r#"{{"name":"d{minor}","uuid":"","minor":{minor},"suspended":false,"deferred_remove":false,
                "clone_always":false,"compile":true,"read_ahead":null,"geometry":[0,0,0,0],"options":{{}},
                "active":{{"read_only":false,"transient":false,"lines":["{line}"]}},"inactive":null,"lost":null}}"#
            )
        };
        let devices: Vec<_> = lines.iter().map(device).collect();
        let text = format!(r#"{{"version":2,"devices":[{}],"exports":[]}}"#, devices.join(","));
        State::parse(text.as_bytes()).unwrap()
    }

    #[test]
    fn what_stands_on_remote_exports_is_late() {
        #[track_caller]
        fn check(lines: &[(u32, &str)], expect: &[&[u32]]) {
            let found: Vec<Vec<u32>> = groups(&state(lines)).into_iter().map(|g| g.into_iter().collect()).collect();
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

    #[test]
    fn remote_devices_of_a_wave_do_not_stand_on_each_other() {
        let state = state(&[
            (0, "0 8 striped 2 8 600:1 0 600:2 0"),
            (1, "0 8 linear nbd://a 0"),
            (2, "0 8 linear nbd://b 0"),
            (3, "0 8 zero"),
            (4, "0 8 snapshot 600:0 nbd://c P 8"),
        ]);
        let found: Vec<_> = waves(&state, &in_order(&state)).into_iter().map(|w| (w.remote, w.rest)).collect();
        assert_eq!(found, [(vec![1, 2], vec![3]), (vec![], vec![0]), (vec![4], vec![])]);
    }

    #[test]
    fn what_is_beneath_comes_first() {
        #[track_caller]
        fn check(lines: &[(u32, &str)], expect: &[u32]) {
            assert_eq!(in_order(&state(lines)), expect, "{lines:?}");
        }
        check(&[], &[]);
        check(&[(0, "0 8 zero"), (1, "0 8 linear 600:0 0")], &[0, 1]);
        check(&[(0, "0 8 linear 600:7 0"), (3, "0 8 zero"), (7, "0 8 linear 600:3 0")], &[3, 7, 0]);
        check(&[(0, "0 8 striped 2 8 600:2 0 600:1 0"), (1, "0 8 linear 600:2 0"), (2, "0 8 zero")], &[2, 1, 0]);
        // Not ours, not there, and in a circle.
        check(&[(0, "0 8 linear 8:1 0"), (1, "0 8 linear 600:9 0")], &[0, 9, 1]);
        check(&[(0, "0 8 linear 600:1 0"), (1, "0 8 linear 600:0 0")], &[1, 0]);
    }
}
