//! `state.json`: what it takes to make the devices again.
//!
//! It is replaced as a whole, and is on disk before the command that changed it is answered. It is read strictly: a file
//! that this udm does not understand in full is not acted on in part.

use super::Daemon;
use super::lost::LostDevices;
use super::nodes::Nodes;
use super::tcp::TcpExports;
use super::vhost::VhostExports;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use udm_control::second::{NodeKind, VhostUserExport};
use udm_core::{Geometry, MappedDevice, Registry, StatusKind, Table, TableSlot};

/// The version of the file.
const VERSION: u32 = 2;
/// A file that is longer is none of ours: a device takes some hundred bytes, a line of a table as much.
const MAX_FILE: u64 = 256 << 20;

/// The file.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct State {
    version: u32,
    /// In the order of their numbers.
    pub(crate) devices: Vec<DeviceState>,
    pub(crate) exports: Vec<ExportState>,
    #[serde(default)]
    pub(crate) vhost_user: Vec<VhostUserState>,
}

/// A device.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct DeviceState {
    pub(crate) name: String,
    pub(crate) uuid: String,
    pub(crate) minor: u32,
    pub(crate) suspended: bool,
    pub(crate) deferred_remove: bool,
    pub(crate) clone_always: bool,
    pub(crate) compile: bool,
    pub(crate) read_ahead: Option<u32>,
    #[serde(default = "unless_told")]
    pub(crate) io_poll: bool,
    #[serde(default)]
    pub(crate) poll_budget: Option<u32>,
    /// Cylinders, heads, sectors, start.
    pub(crate) geometry: (u16, u8, u8, u64),
    /// Options of its targets.
    pub(crate) options: BTreeMap<String, String>,
    /// Of a lost device, the table that it had.
    pub(crate) active: Option<TableState>,
    pub(crate) inactive: Option<TableState>,
    /// Why the device has an error table instead of its own.
    pub(crate) lost: Option<String>,
    /// Its node in the file system.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) node: Option<NodeState>,
}

/// A node that was asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct NodeState {
    pub(crate) kind: NodeKind,
    pub(crate) mapper: bool,
}

/// A table, in the words that load it again.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TableState {
    pub(crate) read_only: bool,
    /// What it holds ends with the process.
    pub(crate) transient: bool,
    pub(crate) lines: Vec<String>,
}

/// A device that is exported over TCP.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ExportState {
    pub(crate) name: String,
    pub(crate) tcp: String,
}

/// A device that is exported over vhost-user.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct VhostUserState {
    pub(crate) name: String,
    pub(crate) at: VhostUserExport,
}

impl State {
    /// The state of now.
    pub(crate) fn of(
        registry: &Registry,
        lost: &LostDevices,
        tcp: &TcpExports,
        vhost: &VhostExports,
        nodes: &Nodes,
    ) -> Self {
        let mut devices: Vec<_> = registry.list().iter().map(|md| DeviceState::of(md, lost, nodes)).collect();
        devices.sort_by_key(|device| device.minor);
        let exports = tcp.list().into_iter().map(|e| ExportState { name: e.name, tcp: e.address }).collect();
        let vhost_user = vhost.described().into_iter().map(|(name, at)| VhostUserState { name, at }).collect();
        Self { version: VERSION, devices, exports, vhost_user }
    }

    /// What a daemon before this one left; `None` when it left nothing.
    ///
    /// # Errors
    /// The file cannot be read, or is not understood in full: why, for people.
    pub(crate) fn read(path: &Path) -> Result<Option<Self>, String> {
        let file = match File::open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error.to_string()),
        };
        let mut text = Vec::new();
        file.take(MAX_FILE + 1).read_to_end(&mut text).map_err(|e| e.to_string())?;
        if text.len() as u64 > MAX_FILE {
            return Err(format!("it is longer than {MAX_FILE} bytes"));
        }
        Self::parse(&text).map(Some)
    }

    /// Reads the text of a file.
    pub(crate) fn parse(text: &[u8]) -> Result<Self, String> {
        // The version first: of another one nothing else can be expected.
        #[derive(Deserialize)]
        struct Versioned {
            version: u32,
        }
        let Versioned { version } =
            serde_json::from_slice(text).map_err(|e| format!("it is no state, or cut short: {e}"))?;
        if version != VERSION {
            return Err(format!("it has version {version}, this udm reads version {VERSION}"));
        }
        serde_json::from_slice(text).map_err(|e| e.to_string())
    }

    /// As another daemon of the same version tells it.
    pub(crate) fn of_value(value: serde_json::Value) -> Result<Self, String> {
        let text = serde_json::to_vec(&value).map_err(|e| e.to_string())?;
        Self::parse(&text)
    }

    /// As the file has it.
    pub(crate) fn text(&self) -> Result<String, serde_json::Error> {
        let mut text = serde_json::to_string_pretty(self)?;
        text.push('\n');
        Ok(text)
    }
}

impl DeviceState {
    fn of(md: &std::sync::Arc<MappedDevice>, lost: &LostDevices, nodes: &Nodes) -> Self {
        let info = md.info();
        let table = |slot| md.table(slot).map(|table| TableState::of(&table));
        let lost = lost.of(md);
        let Geometry { cylinders, heads, sectors, start } = md.geometry();
        Self {
            name: info.name,
            uuid: info.uuid,
            minor: info.devt.minor,
            suspended: info.suspended,
            deferred_remove: info.deferred_remove,
            clone_always: md.clone_always(),
            compile: md.compile(),
            read_ahead: md.chosen_read_ahead(),
            geometry: (cylinders, heads, sectors, start),
            options: md.target_options(),
            active: lost.as_ref().map_or_else(|| table(TableSlot::Active), |lost| Some(lost.was.clone())),
            io_poll: md.io_poll(),
            poll_budget: md.chosen_poll_budget(),
            inactive: table(TableSlot::Inactive),
            lost: lost.map(|lost| lost.reason),
            node: nodes.wanted(md),
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
        Self { read_only: table.read_only(), transient: table.is_transient(), lines }
    }
}

/// Writes the file, whole or not at all, when there is something new.
#[derive(Default)]
pub(crate) struct StateFile {
    /// What was written last. Held while a state is taken and written, so that an older one never follows a newer.
    written: Mutex<String>,
}

impl StateFile {
    /// Writes the state of now. Blocks until it is on disk.
    pub(crate) fn save(&self, daemon: &Daemon) -> io::Result<()> {
        let mut written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        let text = State::of(&daemon.registry, &daemon.lost, &daemon.tcp, &daemon.vhost, &daemon.nodes).text()?;
        if *written != text {
            replace(&daemon.places.state(), &text)?;
            *written = text;
        }
        Ok(())
    }

    /// Takes the file away, for good: no later save brings it back.
    pub(crate) fn forget(&self, path: &Path) -> io::Result<()> {
        let _written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => sync_directory(path),
        }
    }
}

fn replace(path: &Path, text: &str) -> io::Result<()> {
    let new = path.with_extension("json.new");
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&new)?;
    file.write_all(text.as_bytes())?;
    // Before the rename, or a power cut may leave the new name with nothing behind it.
    file.sync_all()?;
    fs::rename(&new, path)?;
    sync_directory(path)
}

fn sync_directory(path: &Path) -> io::Result<()> {
    path.parent().map_or(Ok(()), |dir| File::open(dir)?.sync_all())
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEVICE: &str = r#"{"name":"v","uuid":"","minor":0,"suspended":false,"deferred_remove":false,
        "clone_always":false,"compile":true,"read_ahead":null,"geometry":[0,0,0,0],"options":{},
        "active":{"read_only":false,"transient":false,"lines":["0 8 zero"]},"inactive":null,"lost":null}"#;

    #[test]
    fn read_strictly() {
        let whole = format!(r#"{{"version":2,"devices":[{DEVICE}],"exports":[]}}"#);
        let state = State::parse(whole.as_bytes()).unwrap();
        assert_eq!(state.devices[0].active.as_ref().unwrap().lines, ["0 8 zero"]);
        assert_eq!(State::parse(state.text().unwrap().as_bytes()), Ok(state), "what is written is read");
        for cut in 0..whole.len() {
            assert!(State::parse(&whole.as_bytes()[..cut]).is_err(), "cut short after {cut} bytes");
        }
        for (text, expect) in [
            (whole.replace(r#""version":2"#, r#""version":3"#), "version 3, this udm reads version 2"),
            (whole.replace(r#""version":2"#, r#""version":1"#), "version 1"),
            (whole.replace(r#""version":2,"#, ""), "missing field `version`"),
            (whole.replace(r#""exports":[]"#, r#""exports":[],"more":1"#), "unknown field `more`"),
            (whole.replace(r#""uuid":"","#, ""), "missing field `uuid`"),
            (whole.replace(r#""minor":0"#, r#""minor":-1"#), "-1"),
            (whole.replace(r#""lines":"#, r#""rows":"#), "unknown field `rows`"),
            (format!("{whole}x"), "trailing"),
        ] {
            let error = State::parse(text.as_bytes()).unwrap_err();
            assert!(error.contains(expect), "{text}: {error}");
        }
    }
}
