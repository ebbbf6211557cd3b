//! What it takes to go on with a front end in another process.
//!
//! A server is paused: it takes nothing from the rings and no message, and finishes what is under way. All that there
//! is to know is then what the front end has said, the descriptors that it has sent, and where each ring goes on. The
//! next server maps the same memory, and goes on with the rings; what the driver has made available meanwhile waits
//! there, as does what it has rung. It notices nothing.

use super::inflight::Inflight;
use super::memory::{GuestMemory, MAX_SLOTS, Region};
use super::ring::RingAddresses;
use super::server::{MAX_QUEUES, Options};
use super::session::{Session, Surroundings, TURN, Vring, Workers, check_event};
use super::wire::{Inbox, RegionSpec};
use super::worker::Command;
use super::{Mode, inflight::InflightSpec};
use crate::exports::{Client, Exports, OpenExport};
use crate::worker::deadline::{Answers, Deadline};
use rustix::fd::OwnedFd;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::sync::{Arc, mpsc};
use udm_base::Sectors;

/// All that a server gives to the next.
pub struct Handed {
    /// The socket that it listens on. Its file stays.
    pub listener: OwnedFd,
    /// The front end that is connected.
    pub session: Option<HandedSession>,
}

/// A front end on its way to another server.
pub struct HandedSession {
    /// What is known of it.
    pub state: SessionState,
    /// What was received of a message that is not complete.
    pub input: Vec<u8>,
    /// Its descriptors, in the order in which `state` speaks of them. They may be hundreds.
    pub fds: Vec<OwnedFd>,
}

/// What is known of a front end. Each descriptor that it speaks of is among [`HandedSession::fds`]: the socket, those
/// of the message that is not complete, the back end's own socket, regions, what is in flight, and for each ring what
/// is rung.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SessionState {
    features: u64,
    /// What it was offered; a daemon before this one did not say.
    #[serde(default)]
    offered: u64,
    protocol: u64,
    /// The size that it was told, in sectors.
    told: u64,
    input_fds: usize,
    backend: bool,
    regions: Vec<RegionSpec>,
    inflight: Option<InflightSpec>,
    queue_size: u16,
    vrings: Vec<VringState>,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct VringState {
    size: u16,
    addresses: Option<RingAddresses>,
    base: u16,
    /// `Some(false)`: it is polled.
    kick: Option<bool>,
    call: bool,
    enabled: bool,
    runs: bool,
}

/// A front end that was checked, with its memory mapped and its export open. Nothing of its rings has been looked at.
pub struct Prepared {
    export: OpenExport,
    socket: OwnedFd,
    inbox: Inbox,
    backend: Option<OwnedFd>,
    features: u64,
    offered: u64,
    protocol: u64,
    told: Sectors,
    memory: GuestMemory,
    inflight: Option<Inflight>,
    vrings: Vec<Vring>,
    queue_size: u16,
}

impl Prepared {
    /// Queues that the front end was told of, and entries of each at most: the server must have as many.
    pub(super) fn shape(&self) -> (u16, u16) {
        (self.vrings.len() as u16, self.queue_size)
    }
}

impl HandedSession {
    /// Checks what another process says, maps the memory, and opens the export of that name. May block as that does. An
    /// error says what is wrong, for people.
    pub fn prepare(self, exports: &dyn Exports, name: &str) -> Result<Prepared, String> {
        let Self { state, input, fds } = self;
        let mut fds = VecDeque::from(fds);
        let mut fd = || fds.pop_front().ok_or_else(|| "descriptors of a front end have not come".to_owned());
        let count = state.vrings.len();
        let most = state.queue_size;
        if count == 0 || count > usize::from(MAX_QUEUES) || state.regions.len() > MAX_SLOTS {
            return Err(format!("{count} queues of a front end, and {} regions of memory", state.regions.len()));
        }
        let socket = fd()?;
        let input_fds = (0..state.input_fds).map(|_| fd()).collect::<Result<_, _>>()?;
        let inbox = Inbox::of(input, input_fds)?;
        let backend = state.backend.then(&mut fd).transpose()?;
        let regions = state.regions.iter().map(|spec| Region::map(*spec, fd()?)).collect::<Result<_, _>>()?;
        let memory = GuestMemory::new(regions)?;
        let options = Options { queues: count as u16, queue_size: most, threads: 1, mode: Mode::default() };
        let inflight = state.inflight.map(|spec| Inflight::map(spec, fd()?, &options)).transpose()?;
        let mut vrings = Vec::with_capacity(count);
        for VringState { size, addresses, base, kick, call, enabled, runs } in state.vrings {
            if runs && state.features == 0 {
                return Err("a queue of a front end runs without features".into());
            }
            if size > most || (size > 0 && !size.is_power_of_two()) {
                return Err(format!("a queue of {size} entries of {most}"));
            }
            let kick = kick.map(|is_rung| is_rung.then(&mut fd).transpose()).transpose()?;
            let call = call.then(&mut fd).transpose()?;
            kick.iter().flatten().chain(&call).try_for_each(check_event)?;
            vrings.push(Vring { size, addresses, base, kick, call, enabled, running: false, paused: runs });
        }
        if !fds.is_empty() {
            return Err(format!("{} descriptors of a front end too many", fds.len()));
        }
        let client = Client::of_unix(&socket).map_err(|errno| format!("the socket of a front end: {errno}"))?;
        let export = exports.open(name, &client).map_err(|e| e.to_string())?;
        let SessionState { features, offered, protocol, told, queue_size, .. } = state;
        // More than any device has is a nonsense, and differs from every size as well.
        let told = Sectors::new(told.min(1 << 54));
        Ok(Prepared {
            export,
            socket,
            inbox,
            backend,
            features,
            offered,
            protocol,
            told,
            memory,
            inflight,
            vrings,
            queue_size,
        })
    }
}

impl Session {
    /// Goes on with a front end of another server, but for its rings: [`resume`](Self::resume) starts them.
    pub(super) fn go_on(around: Arc<Surroundings>, prepared: Prepared) -> Self {
        let Prepared { export, socket, inbox, backend, features, protocol, told, memory, inflight, vrings, .. } =
            prepared;
        let mut this = Self::new(around, socket, export);
        // The front end goes by what it was told first.
        this.offered |= prepared.offered | features;
        (this.inbox, this.backend, this.memory) = (inbox, backend, Arc::new(memory));
        (this.features, this.protocol, this.told) = (features, protocol, told);
        (this.inflight, this.vrings) = (inflight, vrings);
        this
    }

    /// Stops the queues, and waits until nothing is under way. If that is not so by then, they go on. Whether it is.
    pub(super) fn pause(&mut self, deadline: &Deadline) -> bool {
        if Workers::pause_all(self.workers.iter().flatten(), deadline) != Answers::All {
            return false;
        }
        let until = Deadline::after(self.around.domain.clock(), TURN);
        (0..self.vrings.len()).all(|index| !self.vrings[index].running || self.halt(index, &until))
    }

    /// Stops a queue that has nothing under way, and keeps where it goes on. Whether it has stopped.
    fn halt(&mut self, index: usize, until: &Deadline) -> bool {
        // It has a worker, since it runs.
        let Ok(worker) = self.worker(index) else { return false };
        let (answer, base) = mpsc::channel();
        worker.tell(Command::Stop(index, answer));
        let Ok(base) = until.receive(&base) else { return false };
        let vring = &mut self.vrings[index];
        (vring.base, vring.running, vring.paused) = (base, false, true);
        true
    }

    /// Starts the queues that ran before a pause. An error ends the connection.
    pub(super) fn resume(&mut self) -> Result<(), String> {
        self.workers.iter().flatten().for_each(Workers::resume);
        for index in 0..self.vrings.len() {
            if std::mem::take(&mut self.vrings[index].paused) {
                self.start_if_ready(index)?;
            }
        }
        Ok(())
    }

    /// After a pause: gives it away. Its export is closed.
    pub(super) fn hand_over(mut self) -> Result<HandedSession, String> {
        // They have no queue, and end at once.
        self.dismiss().iter().for_each(Workers::join);
        let mut fds = vec![self.socket];
        let (input, more) = self.inbox.into_parts();
        let input_fds = more.len();
        fds.extend(more);
        let backend = self.backend.is_some();
        fds.extend(self.backend);
        let mut regions = Vec::new();
        for (spec, file) in self.memory.regions() {
            regions.push(spec);
            fds.push(file.try_clone().map_err(|e| format!("a descriptor cannot be copied: {e}"))?);
        }
        let inflight = self.inflight.as_ref().map(|inflight| inflight.spec);
        fds.extend(self.inflight.map(|inflight| inflight.file));
        let mut vrings = Vec::new();
        for Vring { size, addresses, base, kick, call, enabled, paused, .. } in self.vrings {
            let state = VringState {
                size,
                addresses,
                base,
                kick: kick.as_ref().map(Option::is_some),
                call: call.is_some(),
                enabled,
                runs: paused,
            };
            vrings.push(state);
            fds.extend(kick.flatten());
            fds.extend(call);
        }
        let state = SessionState {
            features: self.features,
            offered: self.offered,
            protocol: self.protocol,
            told: self.told.get(),
            input_fds,
            backend,
            regions,
            inflight,
            queue_size: self.around.options.queue_size,
            vrings,
        };
        Ok(HandedSession { state, input, fds })
    }
}
