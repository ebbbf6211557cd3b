//! Nodes that are files of the mount, with or without a loop device on top.

use super::claims::Claims;
use super::held::is_held;
use super::mapper;
use crate::daemon::state::NodeState;
use crate::exports::Mapped;
use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tracing::warn;
use udm_control::second::{NodeEntry, NodeKind};
use udm_core::MappedDevice;
use udm_export::node::fuse::{FuseServer, Transport};
use udm_export::node::loopdev::LoopDevice;
use udm_export::{Export, Parameters, Served};

/// The mount, and what is in it.
#[derive(Default)]
pub(super) struct Files {
    pub(super) server: Option<FuseServer>,
    pub(super) nodes: Vec<Node>,
    /// Devices that have none although the default is another.
    pub(super) without: Vec<Weak<MappedDevice>>,
    pub(super) claims: Claims,
}

/// A node.
pub(super) struct Node {
    pub(super) md: Arc<MappedDevice>,
    pub(super) name: String,
    /// As it was asked for.
    pub(super) wanted: NodeState,
    /// `Fuse` or `Loop`.
    pub(super) kind: NodeKind,
    pub(super) loopdev: Option<LoopDevice>,
    pub(super) mapper: Option<PathBuf>,
    pub(super) note: Option<String>,
    pub(super) seen: Parameters,
    /// Its mount has gone.
    pub(super) lost: bool,
}

/// What of a device its block device has to follow.
#[derive(Clone, Copy, Default)]
pub(super) struct Change {
    pub(super) resized: bool,
    /// It is read-only now, or no longer.
    pub(super) moded: Option<bool>,
    /// Its logical block size in bytes, if that is another.
    pub(super) block: Option<u32>,
    /// It takes no discards any more, and its block device has a number of its own.
    pub(super) no_discards: bool,
}

impl Files {
    /// Where the device's node is in the list.
    pub(super) fn position(&self, md: &Arc<MappedDevice>) -> Option<usize> {
        self.nodes.iter().position(|node| Arc::ptr_eq(&node.md, md))
    }

    /// Ends the mount, if there is one.
    pub(super) fn end(&mut self, patience: Duration) {
        if let Some(server) = self.server.take() {
            server.shut_down(patience);
        }
    }

    /// What is told of a node.
    pub(super) fn entry(&self, node: &Node) -> NodeEntry {
        let path = |path: PathBuf| path.display().to_string();
        let server = self.server.as_ref();
        let lacks = node.kind == NodeKind::Loop && node.loopdev.is_none();
        let lacking = || lacks.then(|| format!("its block device comes when {} answers", node.name));
        NodeEntry {
            name: node.name.clone(),
            kind: node.kind,
            transport: server.map_or(Transport::Descriptor, FuseServer::transport).name().to_owned(),
            path: server.map_or_else(String::new, |server| path(server.path(&node.name))),
            file: server.map_or_else(String::new, |server| path(server.file(&node.name))),
            device: node.loopdev.as_ref().map(|loopdev| path(loopdev.path())),
            mapper: node.mapper.clone().map(path),
            note: node.note.clone().or_else(lacking),
        }
    }

    /// Takes a node without a block device away.
    pub(super) fn drop_node(&mut self, at: usize) {
        let mut node = self.nodes.remove(at);
        mapper::unlink(&mut node.mapper);
        if let Some(server) = &self.server {
            server.remove(&node.name);
            server.reap();
        }
    }

    /// Does what follows from a change of the device. What remains to be done for its block device, if there is
    /// anything.
    pub(super) fn follow(&mut self, at: usize) -> Option<Change> {
        let (server, node) = (self.server.as_ref()?, &mut self.nodes[at]);
        let name = node.md.device_name();
        if name != node.name {
            match server.rename(&node.name, &name) {
                Ok(()) => {
                    mapper::unlink(&mut node.mapper);
                    node.name = name;
                }
                Err(message) => warn!("the node of {} keeps its name: {message}", node.name),
            }
        }
        let now = Mapped(node.md.clone()).parameters();
        let then = std::mem::replace(&mut node.seen, now);
        if now != then
            && let Err(error) = server.node(&node.name).changed(&then, &now)
        {
            warn!("{}: {error}", node.name);
        }
        if node.kind != NodeKind::Loop {
            return None;
        }
        let blocks = (now.limits.logical_block_size, then.limits.logical_block_size);
        let change = Change {
            resized: now.sectors != then.sectors,
            moded: (now.read_only != then.read_only).then_some(now.read_only),
            block: (blocks.0 != blocks.1).then_some(blocks.0),
            no_discards: takes_discards(&then) && !takes_discards(&now) && node.wanted.number.is_some(),
        };
        let follows = change.resized || change.moded.is_some() || change.block.is_some() || change.no_discards;
        // Released for a removal that did not come about. One that is still to come does not want it back, and over
        // what is suspended it would wait.
        let lacks = node.loopdev.is_none() || node.wanted.mapper && node.mapper.is_none();
        let comes = lacks && !node.md.info().deferred_remove && !is_held(&node.md);
        (follows && node.loopdev.is_some() || comes).then_some(change)
    }
}

/// Whether a device takes discards at all.
pub(super) fn takes_discards(parameters: &Parameters) -> bool {
    !parameters.limits.max_discard.is_zero()
}

/// Whether it is that device.
pub(super) fn is(weak: &Weak<MappedDevice>, md: &Arc<MappedDevice>) -> bool {
    weak.upgrade().is_some_and(|other| Arc::ptr_eq(&other, md))
}
