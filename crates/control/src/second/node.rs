//! Nodes: devices in the file system.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// What a node is to be.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NodeKind {
    /// The best that there is here.
    Auto,
    /// A block device of the kernel's ublk driver.
    Ublk,
    /// A file.
    Fuse,
    /// A file, and a loop device of the kernel on top of it.
    Loop,
    /// No node.
    None,
}

/// Every kind and its name.
const KINDS: [(NodeKind, &str); 5] = [
    (NodeKind::Auto, "auto"),
    (NodeKind::Ublk, "ublk"),
    (NodeKind::Fuse, "fuse"),
    (NodeKind::Loop, "loop"),
    (NodeKind::None, "none"),
];

impl FromStr for NodeKind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = KINDS.iter().find(|(_, name)| *name == text);
        found.map(|(kind, _)| *kind).ok_or_else(|| format!("{text:?}: expected auto, ublk, fuse, loop or none"))
    }
}

impl fmt::Display for NodeKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = KINDS.iter().find(|(kind, _)| kind == self).map_or("", |(_, name)| *name);
        f.write_str(name)
    }
}

/// A node.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NodeEntry {
    /// The device.
    pub name: String,
    /// What it is: `ublk`, `fuse` or `loop`.
    pub kind: NodeKind,
    /// How requests come to the daemon: `fuse`, `fuse-io_uring` or `ublk`.
    pub transport: String,
    /// What to open: the block device's name, or the file.
    pub path: String,
    /// The file beneath; of ublk, the block device.
    pub file: String,
    /// The kernel's own name of the block device, if there is one.
    pub device: Option<String>,
    /// The link in /dev/mapper, if one was asked for.
    pub mapper: Option<String>,
    /// Why it is less than it could be.
    pub note: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds() {
        for (kind, name) in KINDS {
            assert_eq!((name.parse(), kind.to_string()), (Ok(kind), name.to_owned()));
            assert_eq!(serde_json::to_string(&kind).unwrap(), format!("\"{name}\""));
        }
        assert!("lopp".parse::<NodeKind>().unwrap_err().contains("expected auto, ublk, fuse, loop or none"));
    }
}
