//! A daemon that goes on with what another had, or with what it had itself and has given away.

use super::Daemon;
use super::conversation::{self, Left};
use super::devices::{Devices, Ways};
use super::handover::{Settings, Taken};
use super::life::Life;
use super::nbd::{MainServer, Ready};
use super::nodes::{NodeSettings, Nodes, ReadyNodes};
use super::resources::Resources;
use super::socket::Listener;
use super::state::NodeState;
use super::tcp::TcpExports;
use super::vhost::{self, VhostExports};
use crate::places::Places;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;
use tracing::error;
use udm_io::PollPolicy;

/// A daemon that has everything to serve with, and serves nobody yet.
pub(crate) struct Successor {
    taken: Taken,
    lock: Option<OwnedFd>,
    control: OwnedFd,
    second: OwnedFd,
    nbd: Ready,
    tcp: Vec<(String, SocketAddr, Ready)>,
    vhost: Vec<vhost::Ready>,
    mounted: Option<ReadyNodes>,
    settings: Settings,
    conversations: Vec<Left>,
    problems: Vec<String>,
}

impl Successor {
    /// Of what another daemon, or this one before, has given.
    pub(crate) fn new(places: &Places, mut taken: Taken) -> Result<Self, String> {
        let mut problems: Vec<String> =
            taken.problems.drain(..).filter(|problem| !problem.known).map(|problem| problem.text).collect();
        let name = |path: std::path::PathBuf| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let (control, second) =
            (taken.fd("socket", &name(places.control()))?, taken.fd("socket", &name(places.second()))?);
        let lock = taken.fd("lock", "").ok();
        let messages = taken.all("nbd");
        let nbd = MainServer::prepare(&taken.registry, &places.nbd(), messages, &mut problems)?;
        let messages = taken.all("tcp");
        let tcp = TcpExports::prepare(&taken.registry, messages, &mut problems);
        let messages = taken.all("vhost-user");
        let vhost = vhost::prepare(&taken.registry, messages, &mut problems);
        let messages = taken.all("node");
        let mounted = ReadyNodes::prepare(&taken.registry, messages, &mut problems);
        let mut conversations = Vec::new();
        for message in taken.all(conversation::KIND) {
            match Left::of_message(message) {
                Ok(left) => conversations.push(left),
                Err(why) => problems.push(why),
            }
        }
        let settings = taken.all("settings").first().ok_or("the settings have not come")?.read()?;
        Ok(Self { taken, lock, control, second, nbd, tcp, vhost, mounted, settings, conversations, problems })
    }

    /// What could not be made again, or not as it was, and was not so before.
    pub(crate) fn take_problems(&mut self) -> Vec<String> {
        std::mem::take(&mut self.problems)
    }

    /// The lock of the directory, if it has come.
    pub(crate) fn take_lock(&mut self) -> Option<OwnedFd> {
        self.lock.take()
    }

    /// Serves. This process is the only one that does.
    pub(crate) fn start(self, places: &Places, resources: Resources) -> Result<Life, String> {
        let adopt = |path: std::path::PathBuf, socket| {
            Listener::adopt(&path, socket).map_err(|e| format!("{}: {e}", path.display()))
        };
        let (control, second) = (adopt(places.control(), self.control)?, adopt(places.second(), self.second)?);
        let Taken { registry, claims, tcp, lost, state, .. } = self.taken;
        let nbd = MainServer::go_on(self.nbd);
        tcp.go_on(self.tcp);
        let vhost = VhostExports::default();
        vhost.start(&registry, self.vhost, &state.vhost_user);
        let Settings { node, rings, poll_budget_us } = self.settings;
        let budget = Duration::from_micros(poll_budget_us);
        registry.domain().poll_as(PollPolicy { budget, ..PollPolicy::default() });
        let nodes = Nodes::start(&registry, places, NodeSettings { node, rings }, self.mounted);
        for device in state.devices {
            let Some(NodeState { kind, mapper }) = device.node else { continue };
            if let Err(e) = nodes.bring_back(&device.name, kind, mapper) {
                error!("{} has no node again: {}", device.name, e.message);
            }
        }
        let Resources { ending, event_loop } = resources;
        let devices = Devices::new(places, registry, claims, lost, Ways { nbd, tcp, vhost, nodes });
        let daemon = Arc::new(Daemon::new(places, devices, ending));
        Ok(Life { daemon, control, second, event_loop, conversations: self.conversations })
    }
}
