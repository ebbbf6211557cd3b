//! One front end's connection: what it says, and what comes of it.
//!
//! # Invariants
//! - Each message is answered or refused before the next is looked at. One that is refused ends the connection, unless
//!   the front end asked for an answer: then it is told.
//! - A queue runs when features are agreed upon, its ring is known, it was given something to ring (or to be polled),
//!   and it is enabled.
//! - Features change only while no queue runs. Drivers follow each other on a connection, as firmware and the system
//!   that it starts do: what follows from the features is asked for when a queue starts, and what was offered stays on
//!   offer for as long as the connection lasts, because front ends ask once.

use super::blk::{self, Config, feature};
use super::inflight::{Inflight, InflightQueue, InflightSpec, part_bytes};
use super::memory::{GuestMemory, MAX_SLOTS, Region};
use super::queue::{Queue, Traits};
use super::ring::{Broken, Ring, RingAddresses};
use super::server::Options;
use super::wire::{
    self, BACKEND_CONFIG_CHANGE, Fields, Inbox, Kind, Message, NO_FD, RegionSpec, WireError, protocol, request,
};
use super::worker::{Command, Handle, Health, Start, Worker};
use crate::exports::OpenExport;
use crate::listener::hung_up;
use crate::worker::deadline::Deadline;
use crate::worker::group;
use crate::worker::mailbox::Notifier;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{
    FileType, MemfdFlags, OFlags, SealFlags, fcntl_add_seals, fcntl_getfl, fcntl_setfl, fstat, ftruncate, memfd_create,
};
use std::sync::{Arc, OnceLock, mpsc};
use std::time::Duration;
use udm_base::Sectors;
use udm_io::{BlockDevice, Domain, Nanos, OpFlags};

/// How often somebody who waits for a worker looks whether the front end is still there.
const LOOK: Duration = Duration::from_millis(20);
/// How long a worker may take to look at what it is told: it never blocks for longer than a turn.
pub(super) const TURN: Duration = Duration::from_secs(10);
/// Messages that are handled at a time.
const MESSAGES: usize = 64;
/// In the flags of a ring's addresses: changes are to be logged, for a migration.
const LOG: u32 = 1;

/// A queue as the front end has described it.
#[derive(Default)]
pub(super) struct Vring {
    pub(super) size: u16,
    pub(super) addresses: Option<RingAddresses>,
    pub(super) base: u16,
    /// `Some(None)`: it is to be polled.
    pub(super) kick: Option<Option<OwnedFd>>,
    pub(super) call: Option<OwnedFd>,
    pub(super) enabled: bool,
    pub(super) running: bool,
    /// It runs when the server goes on.
    pub(super) paused: bool,
}

/// A thread that serves queues: each group has one, which starts when it is needed.
pub(super) type Workers = group::Workers<Command, Health>;

/// What a server lends its sessions.
pub(super) struct Surroundings {
    pub(super) domain: Domain,
    pub(super) options: Options,
    /// Notified when a worker has news.
    pub(super) notifier: Arc<Notifier>,
    /// The server is to end, by then.
    pub(super) stop: OnceLock<Nanos>,
}

/// A front end that is connected.
pub(super) struct Session {
    pub(super) around: Arc<Surroundings>,
    pub(super) socket: OwnedFd,
    pub(super) inbox: Inbox,
    export: OpenExport,
    device: Arc<dyn BlockDevice>,
    read_only: bool,
    /// What the front end was offered, or would be.
    pub(super) offered: u64,
    /// What its driver agreed to; 0 before it did, and after a reset.
    pub(super) features: u64,
    pub(super) protocol: u64,
    pub(super) memory: Arc<GuestMemory>,
    pub(super) vrings: Vec<Vring>,
    pub(super) inflight: Option<Inflight>,
    /// Where the front end hears from us.
    pub(super) backend: Option<OwnedFd>,
    pub(super) workers: Vec<Option<Workers>>,
    /// The size that the front end was told.
    pub(super) told: Sectors,
}

/// What is left of a session until its last bio is back.
pub(super) struct Lingering {
    workers: Vec<Workers>,
    _export: OpenExport,
}

impl Lingering {
    /// Whether its last bio is back.
    pub(super) fn is_over(&self) -> bool {
        self.workers.iter().all(Workers::have_ended)
    }

    /// Frees what is left. Call it when it is over.
    pub(super) fn finish(self) {
        self.workers.iter().for_each(Workers::join);
    }
}

/// What a message is answered with.
enum Answer {
    Nothing,
    Body(Vec<u8>, Option<OwnedFd>),
}

fn number(n: u64) -> Result<Answer, String> {
    Ok(Answer::Body(n.to_ne_bytes().to_vec(), None))
}

impl Session {
    pub(super) fn new(around: Arc<Surroundings>, socket: OwnedFd, export: OpenExport) -> Self {
        let (device, read_only) = (export.device(), export.read_only());
        let vrings = std::iter::repeat_with(Vring::default).take(around.options.queues.into()).collect();
        let told = device.sectors();
        let offered = offered(&*device, read_only);
        Self {
            around,
            socket,
            inbox: Inbox::default(),
            export,
            device,
            read_only,
            offered,
            features: 0,
            protocol: 0,
            memory: Arc::default(),
            vrings,
            inflight: None,
            backend: None,
            workers: Vec::new(),
            told,
        }
    }

    pub(super) fn socket(&self) -> &OwnedFd {
        &self.socket
    }

    pub(super) fn has_hung_up(&self) -> bool {
        hung_up([self.socket.as_fd()].into_iter()) == [true]
    }

    fn handles(&self) -> impl Iterator<Item = &Arc<Handle>> {
        self.workers.iter().flatten().flat_map(Workers::handles)
    }

    /// Why the front end can be served no longer, if it cannot.
    pub(super) fn broken(&self) -> Option<String> {
        self.handles().find_map(|handle| handle.status.broken())
    }

    /// Handles what has arrived, up to some messages: one that talks without end must not keep others out. Blocks while
    /// a queue is stopped that has requests out. An error ends the connection.
    pub(super) fn receive(&mut self) -> Result<(), WireError> {
        for _ in 0..MESSAGES {
            let Some(mut message) = self.inbox.receive(&self.socket)? else { return Ok(()) };
            if message.is_reply() {
                return Err(WireError::Broken(format!("it sent a reply to {} that nobody asked for", message.request)));
            }
            let answer = self.answer(&mut message);
            let acked = message.needs_reply() && self.protocol & protocol::REPLY_ACK != 0;
            let (body, fd) = match answer {
                Ok(Answer::Body(body, fd)) => (body, fd),
                Ok(Answer::Nothing) if acked => (0u64.to_ne_bytes().to_vec(), None),
                Ok(Answer::Nothing) => continue,
                Err(reason) if acked => {
                    tracing::warn!("{}: the front end is refused request {}: {reason}", self.name(), message.request);
                    (1u64.to_ne_bytes().to_vec(), None)
                }
                Err(reason) => return Err(WireError::Broken(format!("request {}: {reason}", message.request))),
            };
            let fds: Vec<_> = fd.iter().map(AsFd::as_fd).collect();
            wire::send(&self.socket, message.request, Kind::Reply, &body, &fds)?;
        }
        Ok(())
    }

    pub(super) fn name(&self) -> String {
        self.export.name()
    }

    fn answer(&mut self, message: &mut Message) -> Result<Answer, String> {
        let mut fds = std::mem::take(&mut message.fds);
        if matches!(message.request, request::SET_BACKEND_REQ_FD | request::SET_INFLIGHT_FD | request::ADD_MEM_REG) {
            message.fds = fds;
            fds = vec![message.take_fd()?];
        }
        let mut fields = message.fields();
        match message.request {
            request::GET_FEATURES => return number(self.offered),
            request::SET_FEATURES => self.set_features(fields.u64()?)?,
            request::SET_OWNER => {}
            request::RESET_OWNER | request::RESET_DEVICE => self.reset()?,
            request::GET_PROTOCOL_FEATURES => return number(PROTOCOL),
            request::SET_PROTOCOL_FEATURES => self.set_protocol(fields.u64()?)?,
            request::GET_QUEUE_NUM => return number(self.around.options.queues.into()),
            request::GET_MAX_MEM_SLOTS => return number(MAX_SLOTS as u64),
            request::SET_MEM_TABLE => self.set_memory(&mut fields, fds)?,
            request::ADD_MEM_REG => {
                fields.u64()?;
                let region = Region::map(RegionSpec::read(&mut fields)?, fds.remove(0))?;
                self.change_memory(self.memory.with(region)?)?;
            }
            request::REM_MEM_REG => {
                fields.u64()?;
                self.change_memory(self.memory.without(&RegionSpec::read(&mut fields)?)?)?;
            }
            request::SET_VRING_NUM => {
                let (index, size) = (fields.u32()?, fields.u32()?);
                let most = self.around.options.queue_size;
                let fits = u16::try_from(size).ok().filter(|n| n.is_power_of_two() && *n <= most);
                let size = fits.ok_or_else(|| {
                    format!(
                        "queue {index} is to have {size} entries; expected a power of two up to --queue-size={most}"
                    )
                })?;
                self.idle(index)?.size = size;
            }
            request::SET_VRING_ADDR => self.set_addresses(&mut fields)?,
            request::SET_VRING_BASE => {
                let (index, base) = (fields.u32()?, fields.u32()?);
                self.idle(index)?.base = base as u16;
            }
            request::GET_VRING_BASE => return self.get_base(fields.u32()?),
            request::SET_VRING_KICK => self.set_kick(fields.u64()?, fds)?,
            request::SET_VRING_CALL => self.set_call(fields.u64()?, fds)?,
            // Nothing is told there that the log does not tell.
            request::SET_VRING_ERR => {}
            request::SET_VRING_ENABLE => self.enable(fields.u32()?, fields.u32()?)?,
            request::SET_BACKEND_REQ_FD => self.backend = fds.pop(),
            request::GET_CONFIG => return self.get_config(&mut fields),
            request::SET_CONFIG => return Err("nothing of the configuration can be written".into()),
            request::GET_INFLIGHT_FD => return self.get_inflight(&mut fields, message.body().len()),
            request::SET_INFLIGHT_FD => self.set_inflight(&mut fields, fds.remove(0))?,
            _ => return Err("udm does not know it".into()),
        }
        Ok(Answer::Nothing)
    }

    fn set_features(&mut self, features: u64) -> Result<(), String> {
        let unknown = features & !self.offered;
        if unknown != 0 {
            return Err(format!("features {unknown:#x} were not offered"));
        }
        if features & feature::VERSION_1 == 0 {
            return Err("the driver is older than virtio 1.0; expected a modern one".into());
        }
        if features == self.features {
            return Ok(());
        }
        if let Some(index) = self.vrings.iter().position(|vring| vring.running) {
            return Err(format!("the features change while queue {index} runs; expected GET_VRING_BASE before"));
        }
        self.features = features;
        if features & feature::PROTOCOL == 0 {
            // Then rings are enabled from the start.
            self.vrings.iter_mut().for_each(|vring| vring.enabled = true);
            (0..self.vrings.len()).try_for_each(|index| self.start_if_ready(index))?;
        }
        Ok(())
    }

    fn set_protocol(&mut self, features: u64) -> Result<(), String> {
        match features & !PROTOCOL {
            0 => {
                self.protocol = features;
                Ok(())
            }
            unknown => Err(format!("features {unknown:#x} of the protocol were not offered")),
        }
    }

    fn config(&self) -> Config {
        let Options { queues, queue_size, .. } = self.around.options;
        let seg_max = u32::from(queue_size.min(128)).saturating_sub(2).max(1);
        Config::new(self.device.sectors(), &self.device.limits(), queues, seg_max)
    }

    fn get_config(&mut self, fields: &mut Fields<'_>) -> Result<Answer, String> {
        let (offset, size, _flags) = (fields.u32()? as usize, fields.u32()? as usize, fields.u32()?);
        if offset > blk::MAX_CONFIG || size > blk::MAX_CONFIG - offset {
            return Err(format!("{size} bytes of configuration at {offset}; expected at most {}", blk::MAX_CONFIG));
        }
        let config = self.config();
        self.told = config.sectors;
        let mut body = Vec::with_capacity(12 + size);
        for word in [offset as u32, size as u32, 0] {
            body.extend(word.to_ne_bytes());
        }
        body.extend(&config.bytes()[offset..offset + size]);
        Ok(Answer::Body(body, None))
    }

    /// Tells the front end if the device has another size than it was told.
    pub(super) fn look_at_size(&mut self) {
        let now = self.device.sectors();
        if now == self.told || self.protocol & protocol::CONFIG == 0 {
            return;
        }
        self.told = now;
        let Some(backend) = &self.backend else { return };
        if let Err(error) = wire::send(backend, BACKEND_CONFIG_CHANGE, Kind::Request, &[], &[]) {
            tracing::warn!("{}: the front end cannot be told of the new size: {error}", self.name());
        }
    }

    fn vring(&mut self, index: u32) -> Result<&mut Vring, String> {
        let count = self.vrings.len();
        self.vrings
            .get_mut(index as usize)
            .ok_or_else(|| format!("queue {index}: there are {count}; --queues sets how many"))
    }

    /// A queue that does not run.
    fn idle(&mut self, index: u32) -> Result<&mut Vring, String> {
        let vring = self.vring(index)?;
        if vring.running { Err(format!("queue {index} is changed while it runs")) } else { Ok(vring) }
    }

    fn set_addresses(&mut self, fields: &mut Fields<'_>) -> Result<(), String> {
        let (index, flags) = (fields.u32()?, fields.u32()?);
        let (desc, used, avail) = (fields.u64()?, fields.u64()?, fields.u64()?);
        if flags & LOG != 0 {
            return Err("what is written to memory cannot be logged: a guest cannot be migrated while it runs".into());
        }
        let addresses = Some(RingAddresses { desc, avail, used });
        let vring = self.vring(index)?;
        if vring.running && vring.addresses != addresses {
            return Err(format!("queue {index} is moved while it runs"));
        }
        vring.addresses = addresses;
        Ok(())
    }

    fn set_kick(&mut self, word: u64, mut fds: Vec<OwnedFd>) -> Result<(), String> {
        let index = (word & 0xff) as u32;
        let kick = if word & NO_FD == 0 { Some(fds.pop().ok_or("no descriptor came along")?) } else { None };
        kick.as_ref().map(check_event).transpose()?;
        if self.vring(index)?.running {
            self.stop(index as usize)?;
        }
        self.vring(index)?.kick = Some(kick);
        self.start_if_ready(index as usize)
    }

    fn set_call(&mut self, word: u64, mut fds: Vec<OwnedFd>) -> Result<(), String> {
        let index = (word & 0xff) as u32;
        let call = if word & NO_FD == 0 { Some(fds.pop().ok_or("no descriptor came along")?) } else { None };
        call.as_ref().map(check_event).transpose()?;
        if let Some(call) = &call {
            // One that is full must not stop the worker.
            let flags = fcntl_getfl(call).map_err(|e| e.to_string())?;
            fcntl_setfl(call, flags | OFlags::NONBLOCK).map_err(|e| e.to_string())?;
        }
        // A copy stays here in any case: a queue that is stopped for a while, or goes on in another process, goes on
        // with it.
        let again = call.as_ref().map(OwnedFd::try_clone).transpose().map_err(|e| e.to_string())?;
        let vring = self.vring(index)?;
        vring.call = call;
        if vring.running {
            self.worker(index as usize)?.tell(Command::Call(index as usize, again));
        }
        Ok(())
    }

    fn enable(&mut self, index: u32, enable: u32) -> Result<(), String> {
        let vring = self.vring(index)?;
        vring.enabled = enable != 0;
        match (vring.running, enable != 0) {
            (false, true) => self.start_if_ready(index as usize),
            (true, false) => self.stop(index as usize),
            _ => Ok(()),
        }
    }

    fn get_base(&mut self, index: u32) -> Result<Answer, String> {
        if self.vring(index)?.running {
            self.stop(index as usize)?;
        }
        let vring = self.vring(index)?;
        (vring.kick, vring.call) = (None, None);
        let state = [index, vring.base.into()];
        Ok(Answer::Body(state.iter().flat_map(|word| word.to_ne_bytes()).collect(), None))
    }

    fn reset(&mut self) -> Result<(), String> {
        for index in 0..self.vrings.len() {
            if self.vrings[index].running {
                self.stop(index)?;
            }
            self.vrings[index] = Vring::default();
        }
        self.features = 0;
        self.inflight = None;
        Ok(())
    }

    /// The worker of a queue; started when it is needed first.
    pub(super) fn worker(&mut self, index: usize) -> Result<Arc<Handle>, String> {
        let Options { threads, mode, .. } = self.around.options;
        let number = index % threads.min(self.vrings.len()).max(1);
        if self.workers.len() <= number {
            self.workers.resize_with(number + 1, || None);
        }
        let workers = match &mut self.workers[number] {
            Some(workers) => workers,
            none => {
                let (domain, device) = (self.around.domain.clone(), self.device.clone());
                let (workers, notifier) = (Workers::new(&domain), self.around.notifier.clone());
                let started = workers
                    .start(|_| format!("udm-vhost-{number}"), [move || Worker::new(&domain, device, mode, notifier)]);
                started.map_err(|error| format!("a thread for queue {index} cannot be started: {error}"))?;
                none.insert(workers)
            }
        };
        Ok(workers.handles()[0].clone())
    }

    fn traits(&self) -> Traits {
        let mut id = [0; blk::ID];
        let name = self.name();
        id.iter_mut().zip(name.as_bytes()).for_each(|(to, byte)| *to = *byte);
        let polls = self.around.options.mode == super::Mode::Polled && self.device.can_poll();
        Traits {
            flags: if polls { OpFlags::HIPRI } else { OpFlags::NONE },
            write_through: self.features & feature::FLUSH == 0,
            read_only: self.read_only,
            discard: self.features & feature::DISCARD != 0,
            write_zeroes: self.features & feature::WRITE_ZEROES != 0,
            id,
        }
    }

    pub(super) fn start_if_ready(&mut self, index: usize) -> Result<(), String> {
        let vring = &self.vrings[index];
        if vring.running || !vring.enabled || vring.kick.is_none() {
            return Ok(());
        }
        if self.features == 0 {
            return Err(format!("queue {index} is started before features are agreed upon; expected SET_FEATURES"));
        }
        let Some(addresses) = vring.addresses.filter(|_| vring.size > 0) else {
            return Err(format!("queue {index} is started before its ring is known"));
        };
        let in_words = |Broken(text): Broken| format!("queue {index}: {text}");
        let has = |bit| self.features & bit != 0;
        let kinds = (has(feature::INDIRECT), has(feature::EVENT_IDX));
        let ring = Ring::new(&self.memory, addresses, vring.size, vring.base, kinds).map_err(in_words)?;
        let inflight = match &self.inflight {
            Some(i) if index < usize::from(i.spec.queues) => {
                Some(InflightQueue::new(i.memory.clone(), index, vring.size, i.spec.size).map_err(in_words)?)
            }
            _ => None,
        };
        let queue = Queue::new(index, self.traits(), ring, self.memory.clone(), inflight);
        let worker = self.worker(index)?;
        let vring = &mut self.vrings[index];
        // A copy stays here: a queue that is disabled and enabled goes on with both.
        let again = |fd: &OwnedFd| fd.try_clone().map_err(|e| e.to_string());
        let kick = vring.kick.as_ref().and_then(Option::as_ref).map(again).transpose()?;
        let call = vring.call.as_ref().map(again).transpose()?;
        vring.running = true;
        let (answer, result) = mpsc::channel();
        worker.tell(Command::Start(Box::new(Start { queue, kick, call }), answer));
        let result = self.wait_for(&result)?.map_err(in_words);
        self.vrings[index].running = result.is_ok();
        result
    }

    /// Stops a queue. Blocks until its requests are done, or the front end has gone.
    fn stop(&mut self, index: usize) -> Result<(), String> {
        let (answer, result) = mpsc::channel();
        self.worker(index)?.tell(Command::Stop(index, answer));
        let base = self.wait_for(&result)?;
        let vring = &mut self.vrings[index];
        (vring.base, vring.running) = (base, false);
        Ok(())
    }

    /// What a worker answers. Fails when the front end hangs up meanwhile, or the server is to end.
    fn wait_for<T>(&self, answers: &mpsc::Receiver<T>) -> Result<T, String> {
        loop {
            match answers.recv_timeout(LOOK) {
                Ok(answer) => return Ok(answer),
                Err(mpsc::RecvTimeoutError::Disconnected) => {
                    return Err(self.broken().unwrap_or_else(|| "its queue is gone".into()));
                }
                Err(mpsc::RecvTimeoutError::Timeout) => {}
            }
            if self.around.stop.get().is_some() {
                return Err("the server ends".into());
            }
            if self.has_hung_up() {
                return Err("the front end has hung up while its requests were waited for".into());
            }
        }
    }

    fn set_memory(&mut self, fields: &mut Fields<'_>, fds: Vec<OwnedFd>) -> Result<(), String> {
        let (count, _padding) = (fields.u32()? as usize, fields.u32()?);
        if count != fds.len() {
            return Err(format!("{count} regions of memory with {} descriptors; expected one for each", fds.len()));
        }
        let mut regions = Vec::with_capacity(fds.len());
        for fd in fds {
            regions.push(Region::map(RegionSpec::read(fields)?, fd)?);
        }
        self.change_memory(GuestMemory::new(regions)?)
    }

    fn change_memory(&mut self, memory: GuestMemory) -> Result<(), String> {
        self.memory = Arc::new(memory);
        let (answer, results) = mpsc::channel();
        let mut left = 0;
        for handle in self.handles() {
            handle.tell(Command::Memory(self.memory.clone(), answer.clone()));
            left += 1;
        }
        for _ in 0..left {
            self.wait_for(&results)?.map_err(|Broken(text)| text)?;
        }
        Ok(())
    }

    fn get_inflight(&mut self, fields: &mut Fields<'_>, len: usize) -> Result<Answer, String> {
        let (_size, _offset, queues, size) = (fields.u64()?, fields.u64()?, fields.u16()?, fields.u16()?);
        let Options { queues: most_queues, queue_size: most_size, .. } = self.around.options;
        if queues == 0 || queues > most_queues || size == 0 || size > most_size {
            let text =
                format!("{queues} queues of {size} entries in flight; expected at most {most_queues} of {most_size}");
            return Err(text);
        }
        let bytes = part_bytes(size) * usize::from(queues);
        let file = inflight_file(bytes as u64).map_err(|e| format!("no memory for what is in flight: {e}"))?;
        let mut body = Vec::with_capacity(len);
        body.extend((bytes as u64).to_ne_bytes());
        body.extend(0u64.to_ne_bytes());
        body.extend(queues.to_ne_bytes());
        body.extend(size.to_ne_bytes());
        // The structure has padding that some send and some do not.
        body.resize(len, 0);
        Ok(Answer::Body(body, Some(file)))
    }

    fn set_inflight(&mut self, fields: &mut Fields<'_>, file: OwnedFd) -> Result<(), String> {
        let (bytes, offset, queues, size) = (fields.u64()?, fields.u64()?, fields.u16()?, fields.u16()?);
        if self.vrings.iter().any(|vring| vring.running) {
            return Err("the memory of requests in flight is changed while queues run".into());
        }
        let spec = InflightSpec { bytes, offset, queues, size };
        self.inflight = Some(Inflight::map(spec, file, &self.around.options)?);
        Ok(())
    }

    /// Ends the session. Its requests go on until they are done; nothing of them is shown to the front end any more.
    /// Waits until the workers leave the rings alone, which is after their present turn: the socket closes then, and a
    /// front end that sees it close goes to a server that takes the same rings up.
    pub(super) fn end(mut self) -> Lingering {
        Lingering { workers: self.dismiss(), _export: self.export }
    }

    /// Tells the workers to end, and waits until they leave the rings alone, as long as a turn may take.
    pub(super) fn dismiss(&mut self) -> Vec<Workers> {
        let workers: Vec<_> = std::mem::take(&mut self.workers).into_iter().flatten().collect();
        let until = Deadline::after(self.around.domain.clock(), TURN);
        let heard: Vec<_> = workers.iter().map(|worker| worker.end(&until)).collect();
        // One that rings a bell which its front end has filled does not hear. It touches no ring then, and finds out
        // that it is to end when it goes on.
        for heard in heard {
            let _ = until.receive(&heard);
        }
        workers
    }
}

/// Features of the protocol that are offered.
const PROTOCOL: u64 = protocol::MQ
    | protocol::REPLY_ACK
    | protocol::BACKEND_REQ
    | protocol::CONFIG
    | protocol::INFLIGHT_SHMFD
    | protocol::RESET_DEVICE
    | protocol::CONFIGURE_MEM_SLOTS;

/// Refuses a descriptor that a worker could wait for: to poll or to write a file may take as long as its file system
/// likes, and that may be the front end's own.
pub(super) fn check_event(fd: &OwnedFd) -> Result<(), String> {
    let kind = fstat(fd).map(|stat| FileType::from_raw_mode(stat.st_mode)).map_err(|e| e.to_string())?;
    match kind {
        // An eventfd has none.
        FileType::Unknown | FileType::Fifo | FileType::Socket => Ok(()),
        kind => Err(format!("{kind:?}: expected an eventfd to ring with")),
    }
}

/// Features that are offered for a device.
fn offered(device: &dyn BlockDevice, read_only: bool) -> u64 {
    use feature as f;
    let always = f::SEG_MAX | f::BLK_SIZE | f::FLUSH | f::TOPOLOGY | f::MQ | f::WRITE_ZEROES;
    let rings = f::INDIRECT | f::EVENT_IDX | f::PROTOCOL | f::VERSION_1;
    let discard = if device.limits().max_discard.is_zero() { 0 } else { f::DISCARD };
    always | rings | discard | if read_only { f::RO } else { 0 }
}

/// A file of zeroes that nobody can cut off.
fn inflight_file(bytes: u64) -> std::io::Result<OwnedFd> {
    let file = memfd_create("udm-inflight", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    ftruncate(&file, bytes)?;
    fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(file)
}
