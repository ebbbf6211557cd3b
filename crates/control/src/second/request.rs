//! What can be asked.

use super::NodeKind;
use serde::{Deserialize, Serialize};

/// A request.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Request {
    /// The first request: which version the client speaks. Answer: [`Hello`].
    Hello {
        /// [`VERSION`](super::VERSION)
        version: u32,
    },
    /// Is anybody there? Answer: null.
    Ping,
    /// What devices did. Answer: `{"devices": [`[`DeviceStats`](super::DeviceStats)`…]}`
    Stats {
        /// Of this device only.
        #[serde(default)]
        name: Option<String>,
    },
    /// Changes an option of a device, see [`OPTIONS`](super::OPTIONS). Answer: null.
    Set {
        /// The device.
        name: String,
        /// The option.
        key: String,
        /// Its new value.
        value: String,
    },
    /// What is behind the numbers that lists of dependencies have for files and the like. Answer:
    /// `{"devices": [`[`HostDevice`]`…]}`
    HostDevices,
    /// Where devices can be reached. Answer: `{"exports": [`[`ExportEntry`]`…]}`
    ExportList,
    /// Serves a device over NBD on a TCP address. Answer: [`ExportEntry`].
    ExportAdd {
        /// The device.
        name: String,
        /// `ADDRESS:PORT`; port 0 takes a free one.
        tcp: String,
    },
    /// Serves a device as a disk of a virtual machine. Answer: [`ExportEntry`].
    ExportAddVhostUser {
        /// The device.
        name: String,
        /// Where, and how.
        at: VhostUserExport,
    },
    /// Ends what [`ExportAdd`](Self::ExportAdd) and [`ExportAddVhostUser`](Self::ExportAddVhostUser) began. Answer:
    /// `{"removed": COUNT}`
    ExportRemove {
        /// The device.
        name: String,
        /// Only at this address.
        #[serde(default)]
        tcp: Option<String>,
        /// Only on this socket.
        #[serde(default)]
        vhost_user: Option<String>,
    },
    /// The devices that are in the file system. Answer: `{"nodes": [`[`NodeEntry`](super::NodeEntry)`…]}`
    NodeList,
    /// Puts a device into the file system. Answer: [`NodeEntry`](super::NodeEntry), null for kind `none`.
    NodeAdd {
        /// The device.
        name: String,
        /// As what.
        kind: NodeKind,
        /// With a link in /dev/mapper.
        #[serde(default)]
        mapper: bool,
    },
    /// Takes a device out of the file system. Answer: null.
    NodeRemove {
        /// The device.
        name: String,
    },
    /// Commands under way. Answer: `{"underway": [`[`Underway`](super::Underway)`…]}`
    Progress,
    /// Who waits for what and since when. Answer: [`DebugDump`](super::DebugDump). Takes some tenths of a second at
    /// most.
    Debug,
    /// The last lines of the daemon's log. Answer: `{"lines": ["…"]}`
    Log {
        /// At most so many.
        lines: usize,
    },
    /// Another daemon asks to go on in the place of this one. Answer: null; the connection is theirs from then on.
    Replace {
        /// How things pass from one to the other.
        version: u32,
    },
    /// Ends the daemon: drains what is in flight, flushes, exits. Answer: null, before it ends.
    Shutdown {
        /// The next daemon is to begin without the devices of this one.
        #[serde(default)]
        forget: bool,
    },
}

impl Request {
    /// What it is called where commands under way are listed, and the device that it is about, empty for all. `None`
    /// for what asks about the daemon itself: who asks for the list is not in it.
    pub fn command(&self) -> Option<(&'static str, &str)> {
        Some(match self {
            Self::Stats { name } => ("stats", name.as_deref().unwrap_or_default()),
            Self::Set { name, .. } => ("set", name),
            Self::HostDevices => ("host-devices", ""),
            Self::ExportList => ("export-list", ""),
            Self::ExportAdd { name, .. } => ("export-add", name),
            Self::ExportAddVhostUser { name, .. } => ("export-add-vhost-user", name),
            Self::ExportRemove { name, .. } => ("export-remove", name),
            Self::NodeList => ("node-list", ""),
            Self::NodeAdd { name, .. } => ("node-add", name),
            Self::NodeRemove { name } => ("node-remove", name),
            Self::Hello { .. }
            | Self::Ping
            | Self::Progress
            | Self::Debug
            | Self::Log { .. }
            | Self::Replace { .. }
            | Self::Shutdown { .. } => return None,
        })
    }
}

/// How a device is served over vhost-user. What is not said is left to the server.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VhostUserExport {
    /// The path of the socket, from the root on.
    pub socket: String,
    /// Queues that a front end may use.
    #[serde(default)]
    pub queues: Option<u16>,
    /// Entries that a queue may have.
    #[serde(default)]
    pub queue_size: Option<u16>,
    /// `interrupt`, `adaptive` or `polled`.
    #[serde(default)]
    pub mode: Option<String>,
}

/// The answer to `hello`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Hello {
    /// The version that the daemon speaks.
    pub version: u32,
    /// Its name and version.
    pub program: String,
    /// Its process.
    pub pid: u32,
}

/// A device of the host that has no number of its own.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct HostDevice {
    /// The number that stands for it.
    pub major: u32,
    /// The number that stands for it.
    pub minor: u32,
    /// Its name in tables.
    pub name: String,
}

/// Where a device can be reached.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ExportEntry {
    /// The device.
    pub name: String,
    /// `tcp`, `unix` or `vhost-user`.
    pub transport: String,
    /// The socket: an address with its port, or a path.
    pub address: String,
    /// What an NBD client is given; over vhost-user, what `udm bench` is.
    pub uri: String,
}
