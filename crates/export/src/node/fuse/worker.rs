//! One thread of the server: a channel, the kernel's queues of requests, and the loop that drives them.

use super::connection::Connection;
use super::engine::{DATA_AT, Engine, MAX_TRANSFER, RECEIVE_LEN, Tag};
use super::links::{MEMORY, SURE, of_key};
use super::mount::Mounted;
use super::request::{HEAD, Request, parse};
use super::serve::MAX_BACKGROUND;
use super::tree::{Tree, lock};
use super::uring::{Came, Remains, Uring};
use super::wire::{InHeader, op};
use crate::worker::deadline::Due;
use crate::worker::group::Workers;
use crate::worker::{Rest, Rested, Serve, Turn, mailbox};
use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::Duration;
use udm_base::{AlignedBuf, Errno};
use udm_io::{Channel, Domain, Nanos, Woken};
use zerocopy::FromBytes;

/// The key of the ring's descriptor; those of connections are small.
const RING: u64 = u64::MAX - 1;
/// Requests that are taken in before the device is asked to go on.
const BATCH: usize = 32;
/// A connection from which so many have been taken in since had no more when somebody asked: asynchronous callers have
/// fewer under way, and others one each.
const BACKLOG: usize = 2 * MAX_BACKGROUND as usize;
/// How long memory is kept after the last request.
const WARM: Duration = Duration::from_secs(1);
/// How long after the kernel took no submission it is asked again.
const RETRY: Duration = Duration::from_millis(10);
/// How often a worker looks for requests before it sleeps: whoever waits for an answer asks again at once.
const LINGER: u32 = 24;
/// Memory of one worker for data, apart from what each connection is sure of: with the last request that was taken in,
/// and what is received into.
pub(super) const MOST_MEMORY: usize = MEMORY + 4 * (1 << 20);
/// The most that a connection is sure of, with its last request.
pub(super) const MOST_SURE: usize = SURE + (1 << 20);
/// Pages of one request.
pub(super) const MAX_PAGES: u16 = (MAX_TRANSFER / 4096) as u16;

/// What a worker is told.
pub(super) enum Command {
    /// Take requests of this connection, too.
    Serve(Arc<Connection>),
    /// Take its requests by io_uring, too: the kernel has agreed.
    Register(Arc<Connection>),
    /// Requests of this connection may wait that another has no room for.
    Look(Arc<Connection>),
    /// A write may begin that has waited for others.
    Admit(u32),
    /// Take in every request that the kernel has by now, then answer.
    Reap(mpsc::Sender<()>),
}

/// The side of a worker that other threads see.
pub(super) type Handle = mailbox::Handle<Command>;

/// What all workers of a server share.
pub(super) struct Shared {
    pub(super) tree: Tree,
    /// Of the directory, and of nodes.
    pub(super) connections: Mutex<Vec<Arc<Connection>>>,
    /// Changes when a node's last file is closed.
    pub(super) closed: AtomicUsize,
    /// The kernel has ended all connections: it is unmounted.
    pub(super) gone: AtomicBool,
    /// Workers without a ring, each of which keeps all from using theirs.
    pub(super) ringless: AtomicUsize,
    /// What rings have left, to be dropped when their threads have ended.
    pub(super) remains: Mutex<Vec<Remains>>,
    /// Workers that have not ended.
    pub(super) running: AtomicUsize,
    pub(super) workers: Workers<Command>,
}

impl Shared {
    pub(super) fn new(domain: &Domain, tree: Tree) -> Self {
        Self {
            tree,
            connections: Mutex::default(),
            closed: AtomicUsize::new(0),
            gone: AtomicBool::new(false),
            ringless: AtomicUsize::new(0),
            remains: Mutex::default(),
            running: AtomicUsize::new(0),
            workers: Workers::new(domain),
        }
    }
}

pub(super) struct Worker {
    pub(super) engine: Engine,
    pub(super) shared: Arc<Shared>,
    handle: Arc<Handle>,
    number: usize,
    /// What is received into. Out only while a request refers to it.
    staging: Option<AlignedBuf>,
    /// `Shared::closed` as it was last seen.
    closed: usize,
    /// The ring is in use.
    ring: bool,
    ending: Option<Nanos>,
    paused: bool,
    /// Answers that wait until what the kernel had is taken in: where there may be some of it, a link or the ring, and
    /// how many requests have been taken in there since.
    reaps: Due<HashMap<Option<u32>, usize>>,
}

/// What came of looking for requests.
#[derive(PartialEq, Eq)]
enum Received {
    /// There may be more.
    Some,
    /// There are no more now.
    Dry,
    /// There may be more, for which there is no room.
    Full,
    /// There will be none.
    Gone,
}

impl Worker {
    /// Worker `number` of `workers`; `queues` of io_uring there are to be served, if that is wanted.
    pub(super) fn new(
        domain: &Domain,
        shared: Arc<Shared>,
        (number, workers): (usize, usize),
        queues: Option<usize>,
    ) -> io::Result<Self> {
        let mut engine = Engine::new(domain, (number, workers))?;
        if let Some(queues) = queues {
            let payload = MAX_TRANSFER.max(usize::from(MAX_PAGES) * rustix::param::page_size());
            match Uring::new((number, workers), queues, payload) {
                Ok(uring) => engine.uring = Some(uring),
                Err(error) => tracing::warn!("requests to nodes do not come by io_uring: {error}"),
            }
        }
        if engine.uring.is_none() {
            shared.ringless.fetch_add(1, Ordering::AcqRel);
        }
        shared.running.fetch_add(1, Ordering::AcqRel);
        let handle = Arc::new(Handle::new(&engine.channel, ()));
        let staging = Some(engine.take_large());
        let closed = shared.closed.load(Ordering::Acquire);
        let (ring, ending, paused, reaps) = (false, None, false, Due::default());
        Ok(Self { engine, shared, handle, number, staging, closed, ring, ending, paused, reaps })
    }

    fn is_over(&self) -> bool {
        self.engine.len() == 0 || self.ending.is_some_and(|at| self.engine.channel.now() >= at)
    }

    /// How long it may sleep.
    fn timeout(&self, idle: bool) -> Option<Duration> {
        let timeout = match self.ending {
            Some(at) => Some(Duration::from_nanos(at.since(self.engine.channel.now()))),
            None => (idle && self.engine.is_warm()).then_some(WARM),
        };
        // Nothing wakes the worker for answers that the kernel did not take.
        let waits = self.engine.uring.as_ref().is_some_and(Uring::has_unsubmitted);
        if waits { Some(timeout.map_or(RETRY, |timeout| timeout.min(RETRY))) } else { timeout }
    }

    /// Begins the writes that have waited for one that ended here, wherever they are.
    fn tell_admitted(&mut self) {
        while let Some((worker, slot)) = self.engine.admitted.pop() {
            if worker == self.number {
                self.engine.admit(slot);
                // It may have ended, and let others in.
                self.engine.work();
            } else if let Some(other) = self.shared.workers.handles().get(worker) {
                other.tell(Command::Admit(slot));
            }
        }
    }

    fn see_closed(&mut self) {
        let closed = self.shared.closed.load(Ordering::Acquire);
        if closed != self.closed {
            self.closed = closed;
            self.engine.let_go_of_closed();
        }
    }

    /// From now on requests of a connection are taken.
    fn serve_connection(&mut self, connection: &Arc<Connection>) {
        if self.engine.links.of(connection).is_none()
            && let Err(error) = self.engine.links.add(&self.engine.channel, connection.clone())
        {
            tracing::error!("cannot wait for requests to a node: {error}");
        }
    }

    /// From now on requests of a connection come by the ring.
    fn register(&mut self, connection: &Arc<Connection>) {
        // Another worker may have been told to serve it, and have agreed with the kernel, before this one was told. The
        // kernel keeps all requests until every queue is registered.
        self.serve_connection(connection);
        let Some(link) = self.engine.links.of(connection) else { return };
        let Some(uring) = &mut self.engine.uring else { return };
        uring.register(link, connection.fd());
        if !std::mem::replace(&mut self.ring, true)
            && let Err(error) = self.engine.channel.watch(uring.fd(), RING, true, false)
        {
            tracing::error!("cannot wait for requests by io_uring: {error}");
        }
    }

    /// From now on all requests are taken in that the kernel has by now and that there is room for, of the connections
    /// that are at home here. Others come meanwhile, maybe without end.
    fn reap(&mut self, answer: mpsc::Sender<()>) {
        let _ = self.engine.uring.as_mut().is_some_and(Uring::submit);
        let ring = self.ring.then_some(None);
        let left = self.engine.links.look_at_home().into_iter().map(Some).chain(ring).map(|from| (from, 0)).collect();
        self.reaps.push(left, answer);
    }

    /// Notes that as many requests have been taken in as are at a time, or that there are no more for which there is
    /// room.
    fn taken(&mut self, from: Option<u32>, more: bool) {
        for left in self.reaps.iter_mut() {
            let Some(count) = left.get_mut(&from) else { continue };
            *count += BATCH;
            if !more || *count >= BACKLOG {
                left.remove(&from);
            }
        }
    }

    /// Takes in some of the requests that there are, as far as there is room. Whether there may be more.
    fn receive_all(&mut self) -> bool {
        let mut more = false;
        if self.ring {
            for _ in 0..BATCH {
                let came = self.engine.uring.as_mut().and_then(Uring::next);
                more = came.is_some();
                let Some(came) = came else { break };
                self.take_ring(&came);
            }
            self.taken(None, more);
            while let Some(link) = self.engine.uring.as_mut().and_then(Uring::refused) {
                if let Some(link) = self.engine.links.get(link) {
                    link.connection.set_by_ring(false);
                }
            }
        }
        let ready = match self.engine.links.count_ready(&self.engine.channel) {
            Ok(ready) => ready,
            Err(error) => {
                tracing::error!("cannot wait for requests to a node: {error}");
                0
            }
        };
        for _ in 0..ready {
            let Some(link) = self.engine.links.next() else { break };
            let received = self.receive(link, BATCH);
            self.taken(Some(link), received == Received::Some);
            match received {
                Received::Some => {
                    self.engine.links.look(link);
                    more = true;
                }
                Received::Dry => {}
                Received::Full => self.full(link),
                Received::Gone => self.gone(link),
            }
        }
        more
    }

    /// A connection has no room here for what may be there. The one that was woken for it may be this worker alone: so
    /// it is looked at where it is at home.
    fn full(&mut self, link: u32) {
        self.engine.links.is_full(link);
        let home = self.engine.links.home(link);
        if let (Some(link), Some(home)) = (self.engine.links.get(link), self.shared.workers.handles().get(home))
            && !Arc::ptr_eq(home, &self.handle)
        {
            home.tell(Command::Look(link.connection.clone()));
        }
    }

    /// The kernel has ended a connection.
    fn gone(&mut self, link: u32) {
        let Some(connection) = self.engine.links.get(link).map(|link| link.connection.clone()) else { return };
        if let Some(uring) = &mut self.engine.uring {
            uring.end(link);
        }
        self.engine.links.gone(&self.engine.channel, link);
        if !connection.set_gone() {
            return;
        }
        // Nothing is there to unmount any more, and what is there may be another's.
        connection.take_mounted().into_iter().for_each(Mounted::leave);
        let mut connections = lock(&self.shared.connections);
        connections.retain(|other| !Arc::ptr_eq(other, &connection));
        let last = connections.is_empty();
        drop(connections);
        if let Some(node) = &connection.node {
            self.shared.tree.close_by(node, connection.id);
        }
        self.shared.gone.fetch_or(last, Ordering::AcqRel);
        self.tell_closed();
    }

    /// Has all let go of devices that nobody has open any more.
    pub(super) fn tell_closed(&self) {
        self.shared.closed.fetch_add(1, Ordering::AcqRel);
        self.shared.workers.handles().iter().filter(|h| !Arc::ptr_eq(h, &self.handle)).for_each(|h| h.mailbox.wake());
    }

    /// Serves a request that has come by the ring.
    fn take_ring(&mut self, came: &Came) {
        let Came { entry, link, header, payload } = came;
        let tag = Tag { link: *link, unique: header.unique, entry: Some(*entry) };
        let Some(uring) = &self.engine.uring else { return };
        // Names are the only payload that is looked at here; longer ones than there are find nothing.
        let mut body = [0; 512];
        let from = match header.opcode {
            op::LOOKUP => &uring.payload(*entry)[..*payload],
            _ => uring.operation(*entry),
        };
        let len = from.len().min(body.len());
        body[..len].copy_from_slice(&from[..len]);
        let result = match parse(header, &body[..len]) {
            Some(Request::Write(write)) => {
                let mut staging = self.staging.take().expect("it is back after each request");
                let result = self.write(tag, header, &write, *payload, &mut staging);
                self.staging = Some(staging);
                result
            }
            Some(request) => self.serve(tag, header, &request),
            None => Err(Errno::EINVAL),
        };
        if let Err(error) = result {
            self.engine.fail(tag, error);
        }
    }

    /// Takes in at most `most` requests from a connection's descriptor, as far as it has room.
    fn receive(&mut self, link: u32, most: usize) -> Received {
        for _ in 0..most {
            if !self.engine.links.has_room(link) {
                return Received::Full;
            }
            let Some(found) = self.engine.links.get(link) else { return Received::Dry };
            let mut staging = self.staging.take().expect("it is back after each request");
            let received = rustix::io::read(found.connection.fd(), &mut staging[DATA_AT - HEAD..RECEIVE_LEN]);
            if let Ok(len) = received {
                self.take(link, &mut staging, len);
            }
            self.staging = Some(staging);
            match received {
                Ok(_) => {}
                // A request that was taken back before it could be read.
                Err(rustix::io::Errno::INTR | rustix::io::Errno::NOENT) => {}
                // Without memory the kernel has the request still: the worker is woken for it again.
                Err(rustix::io::Errno::AGAIN | rustix::io::Errno::NOMEM) => return Received::Dry,
                Err(rustix::io::Errno::NODEV) => return Received::Gone,
                Err(error) => {
                    tracing::error!("requests to nodes cannot be received: {error}");
                    return Received::Gone;
                }
            }
        }
        Received::Some
    }

    /// Serves the request of `len` bytes that was received.
    fn take(&mut self, link: u32, staging: &mut AlignedBuf, len: usize) {
        let received = &staging[DATA_AT - HEAD..][..len];
        let Ok((header, body)) = InHeader::read_from_prefix(received) else { return };
        let tag = Tag { link, unique: header.unique, entry: None };
        let result = match parse(&header, body) {
            Some(Request::Write(write)) => {
                let data = body.len().saturating_sub(HEAD - size_of::<InHeader>());
                self.write(tag, &header, &write, data, staging)
            }
            Some(request) => self.serve(tag, &header, &request),
            None => Err(Errno::EINVAL),
        };
        if let Err(error) = result {
            self.engine.fail(tag, error);
        }
    }
}

impl Serve for Worker {
    type Command = Command;
    type Status = ();
    const CLIENTS: &'static str = "requests to nodes";

    fn handle(&self) -> &Arc<Handle> {
        &self.handle
    }

    fn channel(&self) -> &Channel {
        &self.engine.channel
    }

    fn command(&mut self, command: Command) {
        match command {
            Command::Serve(connection) => self.serve_connection(&connection),
            Command::Register(connection) => self.register(&connection),
            Command::Look(connection) => {
                if let Some(link) = self.engine.links.of(&connection) {
                    self.engine.links.look(link);
                }
            }
            Command::Admit(slot) => self.engine.admit(slot),
            Command::Reap(answer) => self.reap(answer),
        }
    }

    /// It is over when it was told to end, or the mount has gone, and nothing is under way.
    fn turn(&mut self) -> io::Result<Turn> {
        let takes = self.ending.is_none() && !self.paused;
        let more = takes && self.receive_all();
        let done = self.engine.work();
        self.tell_admitted();
        self.see_closed();
        self.reaps.answer(|left| !takes || left.is_empty());
        let came = self.engine.uring.as_mut().is_some_and(Uring::submit) && takes;
        if (self.ending.is_some() || self.shared.gone.load(Ordering::Acquire)) && self.is_over() {
            return Ok(Turn::Over);
        }
        if more || done > 0 || came {
            return Ok(Turn::Again);
        }
        self.engine.links.settle(&self.engine.channel, takes)?;
        let idle = self.engine.len() == 0;
        let linger = if idle && takes { LINGER } else { 0 };
        Ok(Turn::Rest(Rest { more: false, linger, timeout: self.timeout(idle) }))
    }

    fn look(&mut self, woken: &mut Vec<Woken>) -> io::Result<bool> {
        self.engine.channel.wait(Some(Duration::ZERO), woken)?;
        Ok(!woken.is_empty() || self.engine.uring.as_mut().is_some_and(|uring| uring.has_come()))
    }

    fn rested(&mut self, rest: Rest, how: Rested, woken: &[Woken]) {
        if how == Rested::InVain && rest.timeout.is_some() && self.engine.len() == 0 {
            self.engine.trim();
        }
        woken.iter().filter_map(|woken| of_key(woken.key)).for_each(|link| self.engine.links.look(link));
    }

    fn pause(&mut self) {
        self.paused = true;
    }

    fn is_quiet(&self) -> bool {
        self.engine.len() == 0
    }

    fn resume(&mut self) {
        self.paused = false;
    }

    fn end(&mut self, deadline: Nanos) {
        self.ending = Some(deadline);
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.engine.links.clear(&self.engine.channel);
        if let Some(uring) = self.engine.uring.take() {
            let mut remains = self.shared.remains.lock().unwrap_or_else(PoisonError::into_inner);
            remains.push(uring.close());
        }
        if self.shared.running.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.shared.tree.close_all();
        }
        self.engine.let_go_of_closed();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::fuse::Owner;
    use crate::worker::mailbox::Order;
    use crate::worker::run;

    fn shared() -> Arc<Shared> {
        Arc::new(Shared::new(&Domain::default(), Tree::new(Owner { uid: 0, gid: 0, time: 0 })))
    }

    #[test]
    fn a_worker_told_to_register_first_serves_a_connection_once() {
        let mut worker = Worker::new(&Domain::default(), shared(), (0, 1), None).unwrap();
        let connection = || {
            let fd = std::fs::File::open("/dev/null").unwrap().into();
            Arc::new(Connection::new(1, fd, None, None, true))
        };
        let (early, other) = (connection(), connection());
        worker.command(Command::Register(early.clone()));
        assert_eq!(worker.engine.links.of(&early), Some(0));
        worker.command(Command::Serve(early.clone()));
        worker.command(Command::Serve(other.clone()));
        assert_eq!((worker.engine.links.of(&early), worker.engine.links.of(&other)), (Some(0), Some(1)));
    }

    /// Who asks that what has come is taken in has an answer though more comes without end, and so has who asks for
    /// other things then.
    #[test]
    fn a_connection_that_is_never_dry_keeps_nobody_waiting() {
        let (told, handle) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            let worker = Worker::new(&Domain::default(), shared(), (0, 1), None).unwrap();
            told.send(worker.handle().clone()).unwrap();
            run(worker);
        });
        let handle = handle.recv().unwrap();
        // Each read finds a request, which nobody knows; answers go nowhere.
        let endless = std::fs::File::options().read(true).write(true).open("/dev/zero").unwrap();
        handle.tell(Command::Serve(Arc::new(Connection::new(0, endless.into(), None, None, false))));
        let (answer, answers) = mpsc::channel();
        handle.tell(Command::Reap(answer.clone()));
        assert_eq!(answers.recv_timeout(Duration::from_secs(50)), Ok(()), "what came before is taken in");
        handle.order(Order::Pause(answer));
        assert_eq!(answers.recv_timeout(Duration::from_secs(50)), Ok(()), "and commands are heard");
        handle.order(Order::End(Nanos::default(), mpsc::channel().0));
        thread.join().unwrap();
    }

    /// A file is opened by way of a connection of which another worker has noticed that it has ended: nobody will close
    /// it.
    #[test]
    fn what_is_opened_by_a_connection_that_has_gone_is_closed() {
        let shared = shared();
        let mut worker = Worker::new(&Domain::default(), shared.clone(), (0, 1), None).unwrap();
        let node = shared.tree.add("node", Box::new(Nothing)).unwrap();
        let sink = std::fs::File::options().write(true).open("/dev/null").unwrap();
        let connection = Arc::new(Connection::new(1, sink.into(), Some(node.clone()), None, false));
        worker.serve_connection(&connection);
        let header = InHeader {
            nodeid: super::super::wire::ROOT,
            ..InHeader::read_from_bytes(&[0; size_of::<InHeader>()]).unwrap()
        };
        let mut open = || {
            let request = parse(&InHeader { opcode: op::OPEN, ..header }, &[0; 8]).unwrap();
            worker.serve(Tag { link: 0, unique: 2, entry: None }, &header, &request)
        };
        assert_eq!((open(), node.is_open()), (Ok(()), true));
        shared.tree.close_by(&node, connection.id);
        assert!(connection.set_gone());
        assert_eq!((open(), node.is_open()), (Err(Errno::ENODEV), false));
    }

    /// A device that nobody gets to.
    struct Nothing;

    impl crate::exports::Export for Nothing {
        fn device(&self) -> Arc<dyn udm_io::BlockDevice> {
            Arc::new(udm_io::MemoryDevice::new(udm_base::Sectors::new(8)).unwrap())
        }
        fn name(&self) -> String {
            "nothing".into()
        }
    }
}
