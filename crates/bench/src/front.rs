//! A disk over vhost-user as a subject: the generator takes the place of a virtual machine.
//!
//! Each round connects anew, with a queue for each job and memory for its buffers: a connection that is not measured
//! would have a polling back end burn a CPU beside the one that is.

use crate::CompletionMode;
use crate::Error;
use crate::lane::Lane;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use udm_base::Sectors;
use udm_export::vhost_user::front::{Done, FrontEnd, FrontError, FrontOptions, FrontQueue, Kind, SharedMemory};
use udm_io::{Clock, Completion, Op, Status};

/// What the name of such a subject begins with.
pub(crate) const PREFIX: &str = "vhost-user:";

/// How long an adaptive job looks for what is done before it sleeps.
const SPIN: u64 = 50_000;

/// A disk behind a socket.
pub(crate) struct Disk {
    path: PathBuf,
    sectors: Sectors,
    read_only: bool,
    round: Mutex<Option<Round>>,
}

/// The connection of a round.
struct Round {
    _front: FrontEnd,
    memory: Arc<SharedMemory>,
    /// Of each job: its queue, and where its buffers are.
    lanes: Vec<Option<(FrontQueue, SendPtr)>>,
    /// Bytes of each job's buffers.
    bytes: u64,
    mode: CompletionMode,
}

/// An address in memory that is shared.
struct SendPtr(NonNull<u8>);

// SAFETY: an address; who has it uses it alone, which is what `Round` hands it out for.
unsafe impl Send for SendPtr {}

impl Disk {
    /// Asks the back end at a socket what it has. Blocks.
    pub(crate) fn open(path: &Path) -> Result<Self, Error> {
        let options = FrontOptions { queues: 1, queue_size: 16, inflight: false, ..FrontOptions::default() };
        let (front, _queues) = FrontEnd::connect(path, options).map_err(|e| error(path, &e))?;
        let config = front.config();
        let (sectors, read_only) = (config.sectors, config.read_only);
        Ok(Self { path: path.to_owned(), sectors, read_only, round: Mutex::new(None) })
    }

    pub(crate) fn sectors(&self) -> Sectors {
        self.sectors
    }

    pub(crate) fn read_only(&self) -> bool {
        self.read_only
    }

    /// Connects for a round of `jobs` with `depth` buffers of `len` bytes each, to be waited for as `load` says.
    /// Blocks.
    fn begin(&self, jobs: usize, depth: usize, len: usize, mode: CompletionMode) -> Result<(), Error> {
        let bytes = ((depth * len) as u64).next_multiple_of(2 << 20);
        let refuse = |text: &str| Err(Error::Load(format!("{}: {text}", self.path.display())));
        let (Ok(queues), Some(queue_size)) = (u16::try_from(jobs), entries(depth)) else {
            return refuse("--iodepth: a queue over vhost-user has at most 32768 entries");
        };
        let options = FrontOptions {
            queues,
            queue_size,
            memory: bytes * jobs as u64 + (2 << 20),
            polled: mode == CompletionMode::Poll,
            inflight: false,
            ..FrontOptions::default()
        };
        let connected = connect_again(&self.path, options).map_err(|e| error(&self.path, &e))?;
        let (front, queues) = connected;
        // Buffers begin on a border of huge pages.
        let start = front.data().next_multiple_of(2 << 20) - front.data();
        let lanes = queues.into_iter().enumerate();
        let lanes = lanes.map(|(job, queue)| {
            let at = front.data_at(start + bytes * job as u64, bytes);
            Some((queue, SendPtr(NonNull::new(at).expect("a mapping is not at null"))))
        });
        let (lanes, memory) = (lanes.collect(), front.memory().clone());
        *self.lock() = Some(Round { _front: front, memory, lanes, bytes, mode });
        Ok(())
    }

    /// Hangs up.
    fn end(&self) {
        *self.lock() = None;
    }

    /// The lane of a job of this round.
    pub(crate) fn lane(&self, job: usize, clock: Arc<dyn Clock>) -> FrontLane {
        let mut round = self.lock();
        let round = round.as_mut().expect("a round has begun");
        let (queue, buffers) = round.lanes[job].take().expect("each job takes its own");
        let (memory, bytes) = (round.memory.clone(), round.bytes as usize);
        FrontLane { queue, buffers: buffers.0, bytes, _memory: memory, mode: round.mode, clock, quiet: 0 }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Round>> {
        self.round.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The back end may still be about the front end of the round before.
fn connect_again(path: &Path, options: FrontOptions) -> Result<(FrontEnd, Vec<FrontQueue>), FrontError> {
    for _ in 0..200 {
        match FrontEnd::connect(path, options) {
            Err(FrontError::Closed | FrontError::System(..)) => std::thread::sleep(Duration::from_millis(10)),
            other => return other,
        }
    }
    FrontEnd::connect(path, options)
}

fn error(path: &Path, error: &FrontError) -> Error {
    Error::Stack(format!("{PREFIX}{}: {error}", path.display()))
}

/// Entries of a ring for so many requests.
fn entries(depth: usize) -> Option<u16> {
    u16::try_from(depth.next_power_of_two().max(4)).ok().filter(|n| *n <= 32768)
}

/// A round that has begun.
pub(crate) struct Begun(Arc<Disk>);

/// Begins a round: see [`Disk::begin`].
pub(crate) fn begin(
    disk: &Arc<Disk>,
    jobs: usize,
    depth: usize,
    len: usize,
    mode: CompletionMode,
) -> Result<Begun, Error> {
    disk.begin(jobs, depth, len, mode)?;
    Ok(Begun(disk.clone()))
}

impl Drop for Begun {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// Looks in vain after which a polling job lets others have the CPU between two looks: the back end, if there is one
/// CPU for both.
const PATIENCE: u32 = 512;

/// To a disk over vhost-user.
pub(crate) struct FrontLane {
    queue: FrontQueue,
    buffers: NonNull<u8>,
    bytes: usize,
    _memory: Arc<SharedMemory>,
    mode: CompletionMode,
    clock: Arc<dyn Clock>,
    /// Looks in vain, one after the other.
    quiet: u32,
}

impl Lane for FrontLane {
    fn memory(&self, bytes: usize) -> Option<NonNull<u8>> {
        assert!(bytes <= self.bytes, "a round has memory for its jobs");
        Some(self.buffers)
    }

    #[inline(always)]
    unsafe fn submit(&mut self, op: Op, byte: u64, memory: &mut [u8], token: u64) -> bool {
        let what = match op {
            Op::Read => Kind::Read,
            Op::Write => Kind::Write,
            Op::Flush => Kind::Flush,
            Op::Discard | Op::WriteZeroes => unreachable!("the generator reads, writes and flushes"),
        };
        self.queue.submit_at(what, byte / 512, memory, token)
    }

    #[inline(always)]
    fn completed(&mut self) -> Option<Completion> {
        self.queue.completed().map(|Done { token, status, .. }| Completion {
            token,
            status: match status {
                0 => Status::Ok,
                2 => Status::NotSupported,
                _ => Status::Io,
            },
        })
    }

    fn poll(&mut self) -> usize {
        if self.queue.kick() || self.queue.has_completed() {
            self.quiet = 0;
        } else {
            self.quiet = self.quiet.saturating_add(1);
            if self.quiet > PATIENCE && self.mode == CompletionMode::Poll {
                std::thread::yield_now();
            }
        }
        0
    }

    fn wait(&mut self, most: Duration) -> std::io::Result<()> {
        if self.mode == CompletionMode::Adaptive {
            let until = self.clock.now().after(SPIN);
            while self.clock.now() < until {
                if self.queue.has_completed() {
                    return Ok(());
                }
                std::hint::spin_loop();
            }
        }
        self.queue.wait(most)
    }

    fn spins(&self) -> bool {
        self.mode == CompletionMode::Poll
    }
}
