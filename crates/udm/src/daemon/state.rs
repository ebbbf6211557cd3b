//! `state.json`: what it would take to make the devices again.

use super::Daemon;
use crate::places::Places;
use serde::{Deserialize, Serialize};
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::sync::{Mutex, PoisonError};
use udm_core::{MappedDevice, StatusKind, Table, TableSlot};

/// The version of the file.
const VERSION: u32 = 1;

/// The file.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct State {
    version: u32,
    /// In the order of their numbers: what a table stands on was mostly made before it.
    pub(crate) devices: Vec<DeviceState>,
    exports: Vec<ExportState>,
}

/// A device.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct DeviceState {
    pub(crate) name: String,
    uuid: String,
    minor: u32,
    suspended: bool,
    deferred_remove: bool,
    clone_always: bool,
    compile: bool,
    read_ahead: Option<u32>,
    #[serde(default = "unless_told")]
    io_poll: bool,
    #[serde(default)]
    poll_budget: Option<u32>,
    active: Option<TableState>,
    inactive: Option<TableState>,
}

/// A table, in the words that load it again.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct TableState {
    read_only: bool,
    lines: Vec<String>,
}

/// A device that is exported over TCP.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct ExportState {
    name: String,
    tcp: String,
}

impl State {
    fn of(daemon: &Daemon) -> Self {
        let mut devices: Vec<_> = daemon.registry.list().iter().map(|md| DeviceState::of(md)).collect();
        devices.sort_by_key(|device| device.minor);
        let exports = daemon.tcp.list().into_iter().map(|e| ExportState { name: e.name, tcp: e.address }).collect();
        Self { version: VERSION, devices, exports }
    }

    /// What a daemon before this one left; `None` when there is nothing to be read.
    pub(crate) fn read(places: &Places) -> Option<Self> {
        serde_json::from_slice(&fs::read(places.state()).ok()?).ok()
    }
}

impl DeviceState {
    fn of(md: &MappedDevice) -> Self {
        let info = md.info();
        let table = |slot| md.table(slot).map(|table| TableState::of(&table));
        Self {
            name: info.name,
            uuid: info.uuid,
            minor: info.devt.minor,
            suspended: info.suspended,
            deferred_remove: info.deferred_remove,
            clone_always: md.clone_always(),
            compile: md.compile(),
            read_ahead: md.chosen_read_ahead(),
            io_poll: md.io_poll(),
            poll_budget: md.chosen_poll_budget(),
            active: table(TableSlot::Active),
            inactive: table(TableSlot::Inactive),
        }
    }
}

/// The state of an option in a file that is older than the option.
fn unless_told() -> bool {
    true
}

impl TableState {
    fn of(table: &Table) -> Self {
        let lines = table.lines(StatusKind::Table).iter().map(ToString::to_string).collect();
        Self { read_only: table.read_only(), lines }
    }
}

/// Writes the file, whole or not at all, when there is something new.
#[derive(Default)]
pub(crate) struct StateFile {
    /// What was written last. Held while a state is taken and written, so that an older one never follows a newer.
    written: Mutex<String>,
}

impl StateFile {
    /// Writes the state of now.
    pub(crate) fn save(&self, daemon: &Daemon) -> io::Result<()> {
        let mut written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        let mut text = serde_json::to_string_pretty(&State::of(daemon))?;
        text.push('\n');
        if *written != text {
            replace(&daemon.places, &text)?;
            *written = text;
        }
        Ok(())
    }
}

fn replace(places: &Places, text: &str) -> io::Result<()> {
    let new = places.state().with_extension("json.new");
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&new)?;
    file.write_all(text.as_bytes())?;
    // Not synced: the rename keeps it whole when the daemon is killed. After a power cut there are no devices to go on
    // with, and each command would wait for the disk.
    fs::rename(&new, places.state())
}
