//! Devices that are made again after the daemon has started: those above another machine or process, which may not
//! answer.
//!
//! Neither the daemon nor a client may wait for a server that does not concern it. So devices on remote exports are
//! opened on separate threads. Until then such a device exists without a table, and the state keeps the table that it
//! will get. Devices that belong together are made by one thread, as [`restore`](super::restore) makes the others.
//!
//! # Invariants
//! - Nothing is served from a device before it has its table back: a client that is told other limits or flags keeps
//!   them.
//! - A snapshot and the writers to its origin are made together: the snapshot would miss writes to the origin made
//!   before it exists.
//! - A user's commands on such a device have precedence: a device that is removed, or given a table, is left alone.

use super::Daemon;
use super::devices::Devices;
use super::lost::has_table;
use super::resting::Resting;
use super::restore::{FromDisk, Group, Made, Maker, THREADS, bring_back, bring_up_all, lines_of_tables};
use super::state::{DeviceState, What};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tracing::{debug, error, info};
use udm_base::Errno;
use udm_core::{Error, MappedDevice, Registry, TableLine, TableSlot};

/// How often a device is tried again if its server did not answer.
const AGAIN: Duration = Duration::from_secs(30);

/// Whether a user has removed the device or given it a table meanwhile.
fn is_taken(registry: &Registry, md: &Arc<MappedDevice>) -> bool {
    let there = registry.by_devt(md.devt()).is_some_and(|other| Arc::ptr_eq(&other, md));
    !there || has_table(md)
}

/// Makes tables over devices that are not lost. A device above a lost one is lost as well: otherwise it would hold the
/// lost one with the limits of an error table, even after that one has come back.
struct AboveOthers<'a> {
    devices: &'a Devices,
    from: FromDisk<'a>,
}

impl Maker for AboveOthers<'_> {
    fn load(&self, md: &Arc<MappedDevice>, lines: &[TableLine], read_only: bool, live: bool) -> Result<(), Error> {
        let words = lines.iter().flat_map(|line| line.params.split_ascii_whitespace());
        for beneath in words.filter_map(|word| self.devices.registry.by_devt(word.parse().ok()?)) {
            if self.devices.lost.of(&beneath).is_some() {
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
    /// Makes the remaining devices in the background. Does not wait for that.
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
            if let Err(e) = self.devices.registry.domain().executor().spawn("udm-late", Box::new(work)) {
                error!("devices above remote exports are not made again: {e}");
            }
        }
    }

    /// Makes a group. Returns the devices to be tried again.
    fn make_late(&self, group: &Group) -> Group {
        let devices = &self.devices;
        let late = devices.lost.late();
        let ends = || self.ending.is_asked();
        let leave = |md: &Arc<MappedDevice>| {
            let minor = md.devt().minor;
            if ends() {
                // The state still has it as it was.
                return true;
            }
            if is_taken(&devices.registry, md) {
                late.done(minor);
                return true;
            }
            late.making(minor);
            false
        };
        let cancel = |md: &Arc<MappedDevice>| ends() || is_taken(&devices.registry, md);
        let maker = AboveOthers { devices, from: FromDisk::unless(&cancel) };
        let order: Vec<u32> = group.iter().map(|(_, state)| state.minor).collect();
        let mut made: Made<'_> = group.iter().map(|(md, state)| (state.minor, (md.clone(), state))).collect();
        let under_way: Vec<_> =
            group.iter().map(|(_, state)| self.underway.begin("RESTORE", &state.name, None)).collect();
        let problems = bring_up_all(&devices.registry, &devices.lost, &mut made, &order, &maker, &leave);
        problems.iter().for_each(|problem| error!("{}", problem.text));
        drop(under_way);
        let mut again = Group::new();
        for minor in order.iter().filter(|minor| made.contains_key(minor)) {
            let (md, state) = &made[minor];
            late.done(*minor);
            let name = md.device_name();
            if let Some(node) = state.node
                && let Err(e) = devices.nodes.bring_back(&name, node)
            {
                error!("{name} has no node again: {}", e.message);
            }
            match devices.lost.of(md) {
                Some(_) => again.push((md.clone(), (*state).clone())),
                None => info!("{name} is there again"),
            }
        }
        let _ = devices.changed(What::Everything);
        again
    }

    /// Gives a lost device its table, if the devices beneath can be opened. Returns whether it is still lost; a device
    /// that has got another table meanwhile is not.
    fn is_still_lost(&self, md: &Arc<MappedDevice>, state: &DeviceState) -> bool {
        let devices = &self.devices;
        let is_lost = |md: &Arc<MappedDevice>| devices.lost.of(md).is_some() && md.table(TableSlot::Inactive).is_none();
        if !is_lost(md) {
            return false;
        }
        // Clients that have it open were told the limits of an error table.
        if md.info().open_count > 0 {
            return true;
        }
        let cancel = |md: &Arc<MappedDevice>| self.ending.is_asked() || !is_lost(md);
        let maker = AboveOthers { devices, from: FromDisk::unless(&cancel) };
        match bring_back(md, state, &maker) {
            Ok(()) => info!("{} is there again", state.name),
            Err(why) => debug!("{} is still lost: {why}", state.name),
        }
        devices.lost.of(md).is_some()
    }
}

/// Tries lost devices again as long as there are some. Not snapshots, which have missed what their origins were sent.
fn try_again(resting: &Resting, mut left: Group) {
    left.retain(|(_, state)| !lines_of_tables(state).any(|line| line.target.starts_with("snapshot")));
    while !left.is_empty() {
        let Some(daemon) = resting.rest(AGAIN) else { return };
        if daemon.replacement.is_under_way() {
            continue;
        }
        let before = left.len();
        left.retain(|(md, state)| daemon.is_still_lost(md, state));
        if left.len() < before {
            let _ = daemon.devices.changed(What::Everything);
        }
    }
}
