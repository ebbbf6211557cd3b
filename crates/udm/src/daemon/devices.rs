//! A daemon's devices and every way to them; what is remembered of both, and what passes to the next daemon.

use super::flush::flush_all;
use super::handover::HandOver;
use super::lost::LostDevices;
use super::nbd::MainServer;
use super::nodes::Nodes;
use super::state::{DeviceState, ExportState, Source, State, StateWriter, Unsaved, VhostUserState, What};
use super::tcp::TcpExports;
use super::vhost::VhostExports;
use crate::places::Places;
use std::sync::Arc;
use std::time::Duration;
use tracing::{error, info};
use udm_base::DevT;
use udm_core::{MAJOR, MappedDevice, Registry};
use udm_files::Claims;

/// The devices, and what serves them.
pub(crate) struct Devices {
    pub(crate) registry: Registry,
    /// The block devices beneath, which this process has for itself.
    pub(crate) claims: Claims,
    pub(crate) lost: LostDevices,
    pub(crate) nbd: MainServer,
    pub(crate) tcp: TcpExports,
    pub(crate) vhost: VhostExports,
    pub(crate) nodes: Nodes,
    state: StateWriter,
}

/// The ways to devices.
pub(crate) struct Ways {
    pub(crate) nbd: MainServer,
    pub(crate) tcp: TcpExports,
    pub(crate) vhost: VhostExports,
    pub(crate) nodes: Nodes,
}

impl Devices {
    /// Of the daemon in `places`. Nothing is remembered before [`changed`](Self::changed).
    pub(crate) fn new(places: &Places, registry: Registry, claims: Claims, lost: LostDevices, ways: Ways) -> Self {
        let Ways { nbd, tcp, vhost, nodes } = ways;
        Self { registry, claims, lost, nbd, tcp, vhost, nodes, state: StateWriter::new(places.dir()) }
    }

    /// What goes on in the next daemon.
    pub(crate) fn givers(&self) -> [&dyn HandOver; 5] {
        [&self.nbd, &self.tcp, &self.vhost, &self.nodes, self.nodes.ublk()]
    }

    /// Lets exports close the devices of clients that have hung up.
    pub(crate) fn reap_hangups(&self) {
        self.nbd.0.reap_hangups();
        self.tcp.reap_hangups();
        self.vhost.reap_hangups();
    }

    /// Whether what a command of so many bytes changes could be remembered. Blocks.
    pub(crate) fn may_change(&self, bytes: usize) -> Result<(), Unsaved> {
        self.state.ready(self, bytes)
    }

    /// Something may have changed: whatever is served follows, and the state is written. Blocks.
    pub(crate) fn changed(&self, what: What) -> Result<(), Unsaved> {
        self.nodes.sync();
        self.sync_exports();
        self.state.save(self, what)
    }

    /// Looks at what changes without a command, as a device does whose removal was deferred.
    pub(crate) fn look_around(&self) {
        self.nodes.look_around();
        self.sync_exports();
        self.state.look_around(self);
    }

    /// Ends every way to the devices, flushes them, and writes what they are for the last time. `forget`: that they are
    /// not to be made again. Blocks, for each of these at most so long.
    pub(crate) fn end(&self, patience: Duration, forget: bool) {
        let _ = self.state.save(self, What::Everything);
        self.nodes.end(patience, forget);
        self.tcp.shut_down(patience);
        self.vhost.shut_down(patience);
        self.nbd.0.shut_down(patience);
        flush_all(&self.registry, patience);
        if forget {
            match self.state.forget() {
                Ok(()) => info!("the devices are forgotten, as asked"),
                Err(error) => error!("{error}"),
            }
        }
        self.state.close();
    }

    fn sync_exports(&self) {
        self.tcp.sync(&self.registry);
        self.vhost.sync(&self.registry);
    }

    fn state_of(&self, md: &Arc<MappedDevice>) -> DeviceState {
        // These first: a device that stops being one of them has its table by then.
        if let Some(late) = self.lost.late().of(md) {
            // What it is to be; but its names are those that it has now.
            let info = md.info();
            return DeviceState { name: info.name, uuid: info.uuid, ..late };
        }
        let lost = self.lost.of(md);
        let state = DeviceState { node: self.nodes.wanted(md), ..DeviceState::of(md) };
        match lost {
            Some(lost) => DeviceState { active: Some(lost.was), lost: Some(lost.reason), ..state },
            None => state,
        }
    }
}

impl Source for Devices {
    fn device(&self, minor: u32) -> Option<DeviceState> {
        Some(self.state_of(&self.registry.by_devt(DevT::new(MAJOR, minor))?))
    }

    fn exports(&self) -> (Vec<ExportState>, Vec<VhostUserState>) {
        (self.tcp.states(), self.vhost.states())
    }

    fn all(&self) -> State {
        let devices = self.registry.list().iter().map(|md| self.state_of(md)).collect();
        let (exports, vhost_user) = self.exports();
        State::new(devices, exports, vhost_user)
    }
}
