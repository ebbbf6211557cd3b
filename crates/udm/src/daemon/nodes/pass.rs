//! Nodes that go on in the next daemon: the mount's connection passes with all that is open in it, loop devices stay as
//! they are.

use super::super::handover::{HandOver, HandOverMessage};
use super::super::own_writes;
use super::super::state::NodeState;
use super::super::ublk::Ublks;
use super::claims::{Claims, Shared};
use super::{Inner, Node, NodeSettings, Nodes, PATIENCE, Seen, failed, threads};
use crate::exports::Mapped;
use crate::places::Places;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tracing::{error, warn};
use udm_base::Errno;
use udm_control::second::NodeKind;
use udm_core::{Error, Registry};
use udm_export::Export;
use udm_export::node::fuse::{Adopted, FuseServer, Plan, Transport};
use udm_export::node::loopdev::LoopDevice;

/// The word of its message.
const KIND: &str = "node";

/// Descriptors of one message; more are in messages behind it.
const FDS: usize = 60;

/// What passes beside the connections.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Passed {
    mount: Plan,
    nodes: Vec<PassedNode>,
    /// Devices that are to have none.
    without: Vec<String>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct PassedNode {
    name: String,
    wanted: NodeState,
    kind: NodeKind,
    loopdev: Option<LoopDevice>,
    mapper: Option<PathBuf>,
    note: Option<String>,
}

/// Nodes that were taken over, and are not served yet.
pub(crate) struct ReadyNodes {
    mount: Adopted,
    nodes: Vec<PassedNode>,
    without: Vec<String>,
}

impl ReadyNodes {
    /// Opens again what is open. `None` when no nodes were passed on.
    pub(crate) fn prepare(
        registry: &Registry,
        messages: Vec<HandOverMessage>,
        problems: &mut Vec<String>,
    ) -> Option<Self> {
        let mut messages = messages.into_iter();
        let mut message = messages.next()?;
        message.fds.extend(messages.flat_map(|more| more.fds));
        Self::of_message(registry, message, problems).map_err(|why| problems.push(format!("nodes: {why}"))).ok()
    }

    fn of_message(registry: &Registry, message: HandOverMessage, problems: &mut Vec<String>) -> Result<Self, String> {
        let Passed { mount, nodes, without } = message.read()?;
        let device = |name: &str| registry.by_name(name).map(|md| Box::new(Mapped(md)) as Box<dyn Export>);
        Ok(Self { mount: Adopted::new(message.fds, mount, device, problems)?, nodes, without })
    }
}

impl Nodes {
    /// The nodes that another daemon had.
    pub(crate) fn start(
        registry: &Registry,
        places: &Places,
        settings: NodeSettings,
        ready: Option<ReadyNodes>,
    ) -> Self {
        let Some(ReadyNodes { mount, nodes, without }) = ready else { return Self::new(registry, places, settings) };
        let dir = places.nodes();
        let server = match mount.serve(registry.domain(), &dir, threads()) {
            Ok(server) => server,
            Err(e) => {
                error!("{}: the nodes are not served any more: {e}", dir.display());
                return Self::new(registry, places, settings);
            }
        };
        registry.set_nodes(dir.clone());
        if nodes.iter().any(|passed| passed.loopdev.is_some()) {
            own_writes::reserve(server.most_data());
        }
        let nodes = nodes.into_iter().filter_map(|passed| {
            let PassedNode { name, wanted, kind, loopdev, mapper, note } = passed;
            let md = registry.by_name(&name)?;
            let seen = Seen::of(&md);
            Some(Node { md, name, wanted, kind, loopdev, mapper, note, seen, lost: false })
        });
        let without = without.iter().filter_map(|name| Some(Arc::downgrade(&registry.by_name(name)?)));
        let (nodes, without) = (nodes.collect(), without.collect());
        let inner = Inner { server: Some(server), nodes, without, claims: Claims::default() };
        let shared = Shared::new(registry.domain(), inner);
        let ublk = Ublks::covered(registry, &dir);
        Self { registry: registry.clone(), dir, settings, ublk, shared }
    }
}

/// Whether its connection can go on in another process. The kernel's queues of io_uring cannot change their process
/// without losing requests, as of 6.18.
fn passes(server: &FuseServer) -> bool {
    server.transport() == Transport::Descriptor
}

impl Nodes {
    /// Lets go of all nodes: the next daemon makes them anew.
    fn let_go(&self) -> Result<(), String> {
        let mut used = self.release_files(|_| true);
        if used.is_empty() {
            let inner = self.lock();
            used = inner.server.as_ref().map_or_else(Vec::new, FuseServer::open_devices);
            used.iter_mut().for_each(|name| *name = format!("the node of {name} is open"));
        }
        if used.is_empty() {
            return Ok(());
        }
        self.sync();
        let why = "it is served by io_uring, and such a mount cannot pass to another daemon (`udm daemon --no-fuse-io-uring`)";
        Err(format!("{}: {why}", used.join("; ")))
    }
}

impl HandOver for Nodes {
    fn kind(&self) -> &'static str {
        KIND
    }

    fn pause(&self, patience: Duration) -> Result<(), String> {
        // As after a change that has just been made.
        self.shared.settle(patience)?;
        let passes = self.lock().server.as_ref().is_none_or(passes);
        if !passes {
            return self.let_go();
        }
        match &self.lock().server {
            Some(server) if server.is_mounted() && !server.pause(patience) => {
                Err(format!("requests to nodes in {} are not done after {} s", self.dir.display(), patience.as_secs()))
            }
            _ => Ok(()),
        }
    }

    fn holds(&self) -> Vec<String> {
        let inner = self.lock();
        let server = inner.server.as_ref().filter(|server| passes(server));
        server.map_or_else(Vec::new, FuseServer::open_devices)
    }

    fn resume(&self, _: &Registry) {
        if let Some(server) = &self.lock().server {
            server.resume();
        }
        self.sync();
    }

    fn give(&self) -> Result<Vec<HandOverMessage>, String> {
        let mut inner = self.lock();
        let Some(server) = inner.server.take_if(|server| passes(server)) else {
            drop(inner);
            self.end_files(PATIENCE);
            return Ok(Vec::new());
        };
        let messages = server.give().map_err(|e| failed(Errno::ENODEV, e.to_string())).and_then(|(fds, mount)| {
            let nodes = std::mem::take(&mut inner.nodes).into_iter().map(|node| {
                let Node { name, wanted, kind, loopdev, mapper, note, .. } = node;
                PassedNode { name, wanted, kind, loopdev, mapper, note }
            });
            let without = inner.without.drain(..).filter_map(|md| Some(md.upgrade()?.device_name()));
            let passed = Passed { mount, nodes: nodes.collect(), without: without.collect() };
            let message = |state| HandOverMessage::new(KIND, "", state).map_err(|e| failed(Errno::EINVAL, e));
            let mut messages =
                vec![message(serde_json::to_value(passed).map_err(|e| failed(Errno::EINVAL, e.to_string()))?)?];
            for (at, fd) in fds.into_iter().enumerate() {
                if at / FDS == messages.len() {
                    messages.push(message(serde_json::Value::Null)?);
                }
                messages[at / FDS].fds.push(fd);
            }
            Ok::<_, Error>(messages)
        });
        match messages {
            Ok(messages) => Ok(messages),
            Err(e) => {
                // Somebody has unmounted it: what is left goes as it does then.
                warn!("{}: {}", self.dir.display(), e.message);
                drop(inner);
                self.end_files(PATIENCE);
                Ok(Vec::new())
            }
        }
    }
}
