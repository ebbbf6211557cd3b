//! `state.json` and `state.log`: what it takes to make the devices again.
//!
//! What a command has changed is on disk before it is answered. It is read strictly: what this udm does not understand
//! in full is not acted on in part.
//!
//! [`journal`] has how it lies on disk, [`writer`] what is written when.

mod disk;
mod journal;
mod writer;

pub(crate) use journal::{LOG, STATE};
pub(crate) use writer::{StateWriter, Unsaved, What, forget};

use super::Daemon;
use super::lost::LostDevices;
use super::nodes::Nodes;
use super::secret;
use super::tcp::TcpExports;
use super::vhost::VhostExports;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;
use udm_control::second::{NodeKind, VhostUserExport};
use udm_core::{Geometry, MappedDevice, Registry, StatusKind, Table, TableSlot};

/// The version of the file. One of version 2 had no log beside it, and is read as well.
const VERSION: u32 = 3;
const WITHOUT_LOG: u32 = 2;

/// The file.
#[derive(Clone, Default, PartialEq, Eq, Debug, Serialize, Deserialize)]
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
    /// On disk the lines lack their arguments.
    #[serde(default, skip_serializing_if = "is_false")]
    pub(crate) secret: bool,
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
        let (exports, vhost_user) = Self::exports_of(tcp, vhost);
        Self { version: VERSION, devices, exports, vhost_user }
    }

    /// The state of now as it may be written.
    fn of_daemon(daemon: &Daemon) -> Self {
        let mut state = Self::of(&daemon.registry, &daemon.lost, &daemon.tcp, &daemon.vhost, &daemon.nodes);
        state.devices.iter_mut().for_each(DeviceState::hide_secrets);
        state
    }

    fn exports_of(tcp: &TcpExports, vhost: &VhostExports) -> (Vec<ExportState>, Vec<VhostUserState>) {
        let exports = tcp.list().into_iter().map(|e| ExportState { name: e.name, tcp: e.address }).collect();
        (exports, vhost.described().into_iter().map(|(name, at)| VhostUserState { name, at }).collect())
    }

    /// What a daemon before this one left; `None` when it left nothing. What was left out of the log is told in the
    /// second.
    ///
    /// # Errors
    /// The files cannot be read, or are not understood in full: why, for people.
    pub(crate) fn read(dir: &Path) -> Result<Option<(Self, Option<String>)>, String> {
        let named = |file: &str, why: String| format!("{}: {why}", dir.join(file).display());
        let disk = match disk::Directory::open(dir) {
            Ok(disk) => disk,
            Err(error) => return Err(format!("{}: {error}", dir.display())),
        };
        let found = journal::read(&disk).map_err(|failed| named(failed.file, failed.error.to_string()))?;
        let Some(checkpoint) = found.checkpoint else { return Ok(None) };
        let mut state = Self::parse(&checkpoint).map_err(|why| named(STATE, why))?;
        state.replay(&found.records).map_err(|why| named(LOG, why))?;
        Ok(Some((state, found.left_out.map(|why| named(LOG, why)))))
    }

    /// Does once more what was done after the checkpoint.
    fn replay(&mut self, records: &[String]) -> Result<(), String> {
        let mut kept = writer::Kept::of(std::mem::take(self));
        for record in records {
            kept.apply(serde_json::from_str(record).map_err(|e| e.to_string())?);
        }
        *self = kept.state();
        Ok(())
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
        if version != VERSION && version != WITHOUT_LOG {
            return Err(format!("it has version {version}, this udm reads version {VERSION}"));
        }
        let mut state: Self = serde_json::from_slice(text).map_err(|e| e.to_string())?;
        state.version = VERSION;
        Ok(state)
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
        if let Some(late) = lost.late().of(md) {
            // What it is to be; but its names are those that it has now.
            return Self { name: info.name, uuid: info.uuid, ..late };
        }
        let minor = info.devt.minor;
        let table = |slot| md.table(slot).map(|table| TableState::of(&table, secret::is_secret(minor, &table)));
        let lost = lost.of(md);
        let Geometry { cylinders, heads, sectors, start } = md.geometry();
        Self {
            name: info.name,
            uuid: info.uuid,
            minor,
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

    fn hide_secrets(&mut self) {
        [&mut self.active, &mut self.inactive].into_iter().flatten().for_each(TableState::hide_secrets);
    }
}

/// The state of an option in a file that is older than the option.
fn unless_told() -> bool {
    true
}

/// Older daemons know nothing of what is not so.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks for a reference")]
fn is_false(value: &bool) -> bool {
    !value
}

impl TableState {
    fn of(table: &Table, secret: bool) -> Self {
        let lines = table.lines(StatusKind::Table).iter().map(ToString::to_string).collect();
        Self { read_only: table.read_only(), transient: table.is_transient(), lines, secret }
    }

    /// Leaves of a secret table its shape.
    fn hide_secrets(&mut self) {
        if self.secret {
            for line in &mut self.lines {
                *line = line.split_ascii_whitespace().take(3).collect::<Vec<_>>().join(" ");
            }
        }
    }
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
            (whole.replace(r#""version":2"#, r#""version":4"#), "version 4, this udm reads version 3"),
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
