//! Changes of a state: what a line of the log says, and what lines make of the state before them.

use super::format::{DeviceState, ExportState, State, VhostUserState};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::io;

/// One change.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum Record {
    /// Of this number there is this device.
    Device(Box<DeviceState>),
    /// Of this number there is none.
    Gone(u32),
    Export(ExportState),
    ExportGone(ExportState),
    VhostUser(VhostUserState),
    VhostUserGone(VhostUserState),
}

/// The state as far as it is written.
#[derive(Clone, Default)]
pub(super) struct Kept {
    pub(super) devices: BTreeMap<u32, DeviceState>,
    pub(super) exports: Vec<ExportState>,
    pub(super) vhost_user: Vec<VhostUserState>,
    /// Devices that go at their last close.
    pub(super) going: BTreeSet<u32>,
}

impl Kept {
    pub(super) fn of(state: State) -> Self {
        let State { version: _, devices, exports, vhost_user } = state;
        let mut kept = Self { exports, vhost_user, ..Self::default() };
        devices.into_iter().for_each(|device| kept.apply(Record::Device(Box::new(device))));
        kept
    }

    pub(super) fn state(self) -> State {
        let Self { devices, exports, vhost_user, going: _ } = self;
        State::new(devices.into_values().collect(), exports, vhost_user)
    }

    pub(super) fn apply(&mut self, record: Record) {
        match record {
            Record::Device(device) => {
                match device.deferred_remove {
                    true => self.going.insert(device.minor),
                    false => self.going.remove(&device.minor),
                };
                self.devices.insert(device.minor, *device);
            }
            Record::Gone(minor) => {
                self.going.remove(&minor);
                self.devices.remove(&minor);
            }
            Record::Export(export) => self.exports.push(export),
            Record::ExportGone(export) => self.exports.retain(|other| *other != export),
            Record::VhostUser(export) => self.vhost_user.push(export),
            Record::VhostUserGone(export) => self.vhost_user.retain(|other| *other != export),
        }
    }

    /// What makes this `now`.
    pub(super) fn changes_to(&self, now: State) -> Vec<Record> {
        let now = Self::of(now);
        let gone =
            self.devices.keys().filter(|minor| !now.devices.contains_key(minor)).map(|minor| Record::Gone(*minor));
        let mut all: Vec<Record> = gone.collect();
        for (minor, device) in now.devices {
            if self.devices.get(&minor) != Some(&device) {
                all.push(Record::Device(Box::new(device)));
            }
        }
        differences(&self.exports, now.exports, Record::ExportGone, Record::Export, &mut all);
        differences(&self.vhost_user, now.vhost_user, Record::VhostUserGone, Record::VhostUser, &mut all);
        all
    }

    pub(super) fn text(&self) -> io::Result<String> {
        Ok(self.clone().state().text()?)
    }
}

pub(super) fn differences<T: Clone + PartialEq>(
    before: &[T],
    now: Vec<T>,
    gone: impl Fn(T) -> Record,
    new: impl Fn(T) -> Record,
    all: &mut Vec<Record>,
) {
    all.extend(before.iter().filter(|one| !now.contains(one)).cloned().map(gone));
    all.extend(now.into_iter().filter(|one| !before.contains(one)).map(new));
}
