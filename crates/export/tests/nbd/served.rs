//! A server for one test, in a directory of its own.

use crate::device::ByHand;
use std::any::Any;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use udm_base::Sectors;
use udm_export::nbd::{Server, ServerBuilder};
use udm_export::{Client, Export, Exports, Listen, OpenError, Refused};
use udm_io::{BlockDevice, Domain, DomainBuilder, MemoryDevice};

/// Bytes of [`Served::memory`].
pub(crate) const SIZE: u64 = 64 << 20;

/// Devices by name. Counts how many exports are open.
pub(crate) struct Devices {
    named: Vec<(String, Arc<dyn BlockDevice>, bool)>,
    open: Arc<AtomicUsize>,
}

struct One {
    name: String,
    device: Arc<dyn BlockDevice>,
    read_only: bool,
    open: Arc<AtomicUsize>,
}

/// Counts down when it goes.
struct Counted(Arc<AtomicUsize>);

impl Devices {
    /// No devices at all.
    pub(crate) fn none() -> Self {
        Self { named: Vec::new(), open: Arc::default() }
    }
}

impl Devices {
    fn one(&self, (name, device, read_only): &(String, Arc<dyn BlockDevice>, bool)) -> Arc<dyn Export> {
        let (name, device, open) = (name.clone(), device.clone(), self.open.clone());
        Arc::new(One { name, device, read_only: *read_only, open })
    }
}

impl Exports for Devices {
    fn list(&self) -> Vec<Arc<dyn Export>> {
        self.named.iter().map(|named| self.one(named)).collect()
    }

    fn find(&self, name: &str, _: &Client) -> Result<Arc<dyn Export>, OpenError> {
        let found = self.named.iter().find(|(n, ..)| n == name || name.is_empty());
        found.map(|named| self.one(named)).ok_or_else(|| OpenError::Unknown(name.to_owned()))
    }
}

impl Export for One {
    fn name(&self) -> String {
        self.name.clone()
    }
    fn description(&self) -> String {
        self.device.name()
    }
    fn device(&self) -> Arc<dyn BlockDevice> {
        self.device.clone()
    }
    fn read_only(&self) -> bool {
        self.read_only
    }
    fn open(&self) -> Result<Box<dyn Any + Send>, Refused> {
        self.open.fetch_add(1, Ordering::SeqCst);
        Ok(Box::new(Counted(self.open.clone())))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A server that listens on a unix socket.
pub(crate) struct Served {
    pub(crate) server: Server,
    pub(crate) domain: Domain,
    pub(crate) dir: tempfile::TempDir,
    open: Arc<AtomicUsize>,
    exports: Arc<Devices>,
}

impl Served {
    /// Serves memory of [`SIZE`] as `mem`, and the same read-only as `ro`.
    pub(crate) fn memory() -> Self {
        let device = Arc::new(MemoryDevice::new(Sectors::in_bytes(SIZE)).expect("memory"));
        Self::devices(2, vec![("mem".into(), device.clone(), false), ("ro".into(), device, true)])
    }

    /// Serves one device as `dev`, by one thread.
    pub(crate) fn device(device: Arc<dyn BlockDevice>) -> Self {
        Self::devices(1, vec![("dev".into(), device, false)])
    }

    /// The same, with a clock that stands still, so that nobody loses patience.
    pub(crate) fn timeless(device: Arc<dyn BlockDevice>) -> Self {
        let domain = DomainBuilder::default().clock(Arc::new(ByHand(1.into()))).build();
        Self::start(domain, Server::builder().threads(1), vec![("dev".into(), device, false)])
    }

    pub(crate) fn devices(threads: usize, named: Vec<(String, Arc<dyn BlockDevice>, bool)>) -> Self {
        Self::start(Domain::default(), Server::builder().threads(threads), named)
    }

    pub(crate) fn start(
        domain: Domain,
        builder: ServerBuilder,
        named: Vec<(String, Arc<dyn BlockDevice>, bool)>,
    ) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let open = Arc::new(AtomicUsize::new(0));
        let exports = Arc::new(Devices { named, open: open.clone() });
        let listen = Listen::Unix(dir.path().join("nbd.sock"));
        let server = builder.listen(listen).start(&domain, exports.clone()).expect("a server");
        Self { server, domain, dir, open, exports }
    }

    /// Lets another server go on with all that this one has. What is known of connections passes as text.
    pub(crate) fn hand_over(&mut self, threads: usize) {
        assert!(self.server.pause(Duration::from_secs(20)), "nothing is under way for long");
        let handed = self.server.hand_over();
        assert_eq!(self.open(), 0, "what gave its clients away has no device open");
        let prepared = handed.connections.into_iter().map(|mut connection| {
            let text = serde_json::to_string(&connection.state).expect("a state is text");
            connection.state = serde_json::from_str(&text).expect("what is written is read");
            connection.prepare(&*self.exports).expect("what a server gives is sound")
        });
        let prepared: Vec<_> = prepared.collect();
        let builder = Server::builder().threads(threads);
        let builder = handed.listeners.into_iter().fold(builder, |b, (at, socket)| b.adopt(at, socket));
        self.server = builder.start(&self.domain, self.exports.clone()).expect("a server");
        prepared.into_iter().for_each(|p| self.server.take(p));
    }

    pub(crate) fn exports(&self) -> Arc<Devices> {
        self.exports.clone()
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.dir.path().join("nbd.sock")
    }

    /// A URI for programs.
    pub(crate) fn uri(&self, export: &str) -> String {
        format!("nbd+unix:///{export}?socket={}", self.socket().display())
    }

    /// How many exports are open.
    pub(crate) fn open(&self) -> usize {
        self.open.load(Ordering::SeqCst)
    }
}
