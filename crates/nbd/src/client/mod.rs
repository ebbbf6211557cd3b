//! A remote export as a block device.
//!
//! One socket, one thread that drives it. Bios of any channel are handed over by a queue and an eventfd; many are
//! under way at once, and each is ended from the driver's thread, so that it completes on its own channel by mailbox.
//! A connection that is lost stays lost: what was under way and what comes later fails with EIO, and the log says why.

mod connect;
mod driver;
pub(super) mod fuzz;
mod handshake;
mod lost;
mod receive;
mod received;

use super::uri::{Endpoint, Uri};
use super::wire::consts::{MAX_PAYLOAD, transmission};
use connect::{Deadline, Timed};
use driver::{Driver, Item, Queue};
use handshake::{Agreed, HandshakeError, has, negotiate};
use std::any::Any;
use std::io;
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::Duration;
use udm_base::{Sector, Sectors};
use udm_io::{Bio, BlockDevice, Cx, DeviceId, Domain, ExtentsReply, Joiner, Limits, Op, Outstanding, Status};

/// How long [`BlockDevice::outstanding`] waits for the driver.
const REPORT_TIMEOUT: Duration = Duration::from_millis(100);

/// Why a remote export cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// Nobody listens, or the name means nothing.
    #[error("{uri}: cannot connect: {source}")]
    Connect {
        /// The export.
        uri: Uri,
        /// The system's error.
        source: io::Error,
    },
    /// The server and udm do not agree.
    #[error("{uri}: {message}")]
    Handshake {
        /// The export.
        uri: Uri,
        /// What went wrong.
        message: String,
    },
    /// The export is not one that a block device can be made of.
    #[error("{uri}: {message}")]
    Unusable {
        /// The export.
        uri: Uri,
        /// What is wrong with it.
        message: String,
    },
    /// The thread could not be started.
    #[error("{uri}: cannot start its thread: {source}")]
    Thread {
        /// The export.
        uri: Uri,
        /// The system's error.
        source: io::Error,
    },
}

/// A remote export.
pub struct NbdDevice {
    uri: Uri,
    agreed: Agreed,
    limits: Limits,
    sectors: Sectors,
    queue: Arc<Queue>,
    joiner: Mutex<Option<Joiner>>,
}

impl NbdDevice {
    /// Connects and negotiates, within `timeout` for all of it, and starts the thread that drives the connection.
    /// Blocks meanwhile, but not for long once `cancel` holds, which is asked now and then.
    pub fn connect(
        uri: &Uri,
        domain: &Domain,
        timeout: Duration,
        cancel: &dyn Fn() -> bool,
    ) -> Result<Arc<Self>, ConnectError> {
        let connect = |source| ConnectError::Connect { uri: uri.clone(), source };
        let (clock, executor) = (domain.clock(), domain.executor());
        let deadline = Deadline::new(&**clock, timeout, cancel);
        let socket = match &uri.endpoint {
            Endpoint::Unix(path) => connect::unix(path, &deadline),
            Endpoint::Tcp { host, port } => connect::tcp(host, *port, &deadline, &**executor),
        };
        let socket = socket.map_err(connect)?;
        let agreed = negotiate(&mut Timed { socket: &socket, deadline: &deadline }, &uri.export).map_err(|error| {
            let (uri, message) = (uri.clone(), hung_up(&error).unwrap_or_else(|| error.to_string()));
            match error {
                HandshakeError::Sizes(_) => ConnectError::Unusable { uri, message },
                _ => ConnectError::Handshake { uri, message },
            }
        })?;
        let limits = limits(&agreed).map_err(|message| ConnectError::Unusable { uri: uri.clone(), message })?;
        let queue = Arc::new(Queue::new().map_err(connect)?);
        let driver = Driver::new(socket, agreed, queue.clone(), uri.to_string(), clock.clone());
        let joiner = executor.spawn("udm-nbd-client", Box::new(move || driver.run()));
        let joiner = joiner.map_err(|source| ConnectError::Thread { uri: uri.clone(), source })?;
        Ok(Arc::new(Self {
            uri: uri.clone(),
            agreed,
            limits,
            sectors: Sectors::in_bytes(agreed.size),
            queue,
            joiner: Mutex::new(Some(joiner)),
        }))
    }

    /// What it names.
    pub fn uri(&self) -> &Uri {
        &self.uri
    }

    /// What is wrong with a bio for this export, if anything is.
    fn refusal(&self, bio: &Bio) -> Option<Status> {
        let can = |flag| has(self.agreed.flags, flag);
        if bio.op().is_write() && self.read_only() {
            return Some(Status::ReadOnly);
        }
        let (supported, most) = match bio.op() {
            Op::Read | Op::Write => (true, self.limits.max_sectors),
            // Without a flush command there is no cache that the client could have flushed.
            Op::Flush if !can(transmission::SEND_FLUSH) => return Some(Status::Ok),
            Op::Flush => return None,
            Op::Discard => (can(transmission::SEND_TRIM), self.limits.max_discard),
            Op::WriteZeroes => (can(transmission::SEND_WRITE_ZEROES), self.limits.max_write_zeroes),
        };
        if !supported {
            return Some(Status::NotSupported);
        }
        let inside = bio.sector().checked_add(bio.sectors()).is_some_and(|end| end <= self.sectors.from_start());
        let block = u64::from(self.limits.logical_block_size) / 512;
        let aligned = (bio.sector().get() | bio.sectors().get()).is_multiple_of(block);
        (!inside || !aligned || bio.sectors() > most || bio.sectors().is_zero()).then_some(Status::Invalid)
    }
}

impl BlockDevice for NbdDevice {
    fn submit(&self, _: &Cx<'_>, bio: Bio) -> Option<Bio> {
        match self.refusal(&bio) {
            Some(status) => bio.end(status),
            None => self.queue.push(Item::Bio(bio)),
        }
        None
    }

    fn sectors(&self) -> Sectors {
        self.sectors
    }

    fn limits(&self) -> Limits {
        self.limits
    }

    fn id(&self) -> DeviceId {
        DeviceId::Anonymous(std::ptr::from_ref(self) as usize)
    }

    fn name(&self) -> String {
        self.uri.to_string()
    }

    fn read_only(&self) -> bool {
        has(self.agreed.flags, transmission::READ_ONLY)
    }

    fn extents(&self, _: &Cx<'_>, sector: Sector, sectors: Sectors, reply: ExtentsReply) {
        if self.agreed.allocation.is_some() && !sectors.is_zero() {
            self.queue.push(Item::Status(sector, sectors, reply));
        }
    }

    fn outstanding(&self) -> Option<Outstanding> {
        let (answer, answers) = mpsc::channel();
        self.queue.push(Item::Report(answer));
        // The driver never waits for its server, so that it answers soon.
        answers.recv_timeout(REPORT_TIMEOUT).ok()
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Drop for NbdDevice {
    fn drop(&mut self) {
        self.queue.stop();
        if let Some(joiner) = self.joiner.get_mut().unwrap_or_else(PoisonError::into_inner).take() {
            joiner.join();
        }
    }
}

/// What a stream's end means here.
fn hung_up(error: &HandshakeError) -> Option<String> {
    let HandshakeError::Io(e) = error else { return None };
    (e.kind() == io::ErrorKind::UnexpectedEof).then(|| "the server hung up during the handshake".to_owned())
}

/// The limits that an export's size constraints and flags amount to.
fn limits(agreed: &Agreed) -> Result<Limits, String> {
    let can = |flag| has(agreed.flags, flag);
    let sizes = agreed.block_sizes;
    let minimum = sizes.map_or(512, |s| s.minimum).max(512);
    let most = sizes.map_or(MAX_PAYLOAD, |s| s.maximum.min(MAX_PAYLOAD)) / minimum * minimum;
    if most == 0 {
        return Err(format!("the server takes less than a block of {minimum} bytes at a time"));
    }
    if agreed.size < u64::from(minimum) {
        return Err(format!("an export of {} bytes is no block device", agreed.size));
    }
    // A length is 32 bits of bytes.
    let range = |flag| Sectors::in_bytes(if can(flag) { u64::from(u32::MAX / minimum * minimum) } else { 0 });
    let preferred = sizes.map_or(4096, |s| s.preferred).max(minimum);
    Ok(Limits {
        logical_block_size: minimum,
        physical_block_size: preferred.min(4096).max(minimum),
        io_min: preferred,
        max_sectors: Sectors::in_bytes(most.into()),
        max_discard: range(transmission::SEND_TRIM),
        discard_granularity: minimum,
        max_write_zeroes: range(transmission::SEND_WRITE_ZEROES),
        write_cache: can(transmission::SEND_FLUSH),
        fua: can(transmission::SEND_FUA),
        ..Limits::default()
    })
}

#[cfg(test)]
mod tests;
