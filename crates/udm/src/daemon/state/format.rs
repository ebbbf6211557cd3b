//! What `state.json` says, and how it is read: strictly.

use crate::daemon::secret;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;
use udm_control::second::{NodeKind, VhostUserExport};
use udm_core::{Geometry, MappedDevice, StatusKind, Table, TableSlot};

/// The version of the file. One of version 2 had no log beside it, and is read as well.
pub(super) const VERSION: u32 = 3;
const WITHOUT_LOG: u32 = 2;

/// The file.
#[derive(Clone, Default, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct State {
    pub(super) version: u32,
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
    /// Of these devices and exports, in any order.
    pub(crate) fn new(
        mut devices: Vec<DeviceState>,
        exports: Vec<ExportState>,
        vhost_user: Vec<VhostUserState>,
    ) -> Self {
        devices.sort_by_key(|device| device.minor);
        Self { version: VERSION, devices, exports, vhost_user }
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
    /// What the device is now, as far as it knows by itself: whether it is lost and has a node is for others to say.
    pub(crate) fn of(md: &Arc<MappedDevice>) -> Self {
        let info = md.info();
        let minor = info.devt.minor;
        let table = |slot| md.table(slot).map(|table| TableState::of(&table, secret::is_secret(minor, &table)));
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
            active: table(TableSlot::Active),
            io_poll: md.io_poll(),
            poll_budget: md.chosen_poll_budget(),
            inactive: table(TableSlot::Inactive),
            lost: None,
            node: None,
        }
    }

    /// Leaves of secret tables their shape.
    pub(super) fn hide_secrets(&mut self) {
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
