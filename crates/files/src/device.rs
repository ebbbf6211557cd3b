//! A regular file or block device of the host as a device.
//!
//! Which way its I/O goes is settled when it is opened:
//! - *mapped*, on tmpfs and ramfs: copies to and from a mapping that faults cannot kill;
//! - *direct*, where the file system does direct I/O and io_uring is there: through the channel's ring, or by system
//!   calls on worker threads where no descriptor is left for one;
//! - *buffered* otherwise: plain system calls, and worker threads for what would block.
//!
//! A file is only ever read and written through its file system, never through the blocks beneath it. A file that is
//! cut off below gives EIO for what it lost; one that grows is larger from then on.

use crate::backing::{Access, Backing, Kind};
use crate::buffered;
use crate::claims::Claims;
use crate::error::{OpenError, OpenErrorKind};
use crate::limits::{self, DirectAlign};
use crate::mapped::Mapped;
use crate::polled::Polled;
use crate::ring::{Ring, RingFile};
use crate::transfers::{Progress, Target};
use crate::worker::{Job, Worker, worker};
use std::any::Any;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use udm_base::{Sector, Sectors};
use udm_io::polling::Polls;
use udm_io::{Bio, BlockDevice, Cx, DeviceId, Executor, ExtentsReply, Limits, Op, OpFlags, Status};

/// How a file is opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FileOptions {
    /// Refuse writes. A file that may only be read is opened so in any case.
    pub read_only: bool,
    /// Refuse, and be refused by, other exclusive opens: O_EXCL on a block device, a lock on a file.
    pub exclusive: bool,
    /// Whether io_uring may be used, where it is there.
    pub ring: bool,
    /// Whether a file in memory may be mapped.
    pub mapping: bool,
}

impl Default for FileOptions {
    /// To read and write, shared, whatever is fastest.
    fn default() -> Self {
        Self { read_only: false, exclusive: false, ring: true, mapping: true }
    }
}

/// Which way a file's I/O goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FileEngine {
    /// Direct I/O through io_uring.
    Direct,
    /// Through the page cache, by system calls.
    Buffered,
    /// A file in memory: copies to and from a mapping.
    Mapped,
}

pub(crate) enum Engine {
    Direct { backing: Arc<Backing>, align: DirectAlign, worker: Worker, polled: Option<Polled> },
    Buffered { backing: Arc<Backing>, worker: Worker },
    Mapped { mapped: Arc<Mapped>, worker: Worker },
}

impl Engine {
    /// The fastest that the file, the machine and the options allow. `limits` are changed to what it can take.
    fn choose(mut backing: Backing, options: FileOptions, executor: Arc<dyn Executor>, limits: &mut Limits) -> Self {
        if backing.in_memory() {
            limits.write_cache = false;
            if options.mapping {
                match Mapped::new(backing) {
                    Ok(mapped) => {
                        let mapped = Arc::new(mapped);
                        let worker = worker(executor, &mapped);
                        return Self::Mapped { mapped, worker };
                    }
                    Err(back) => backing = back,
                }
            }
        } else if options.ring && Ring::is_available() && backing.go_direct() {
            if let Some(align) = limits::direct_align(&backing) {
                limits.logical_block_size = limits.logical_block_size.max(align.block);
                limits.physical_block_size = limits.physical_block_size.max(align.block);
                limits.dma_alignment = align.memory;
                let backing = Arc::new(backing);
                let worker = worker(executor, &backing);
                let polled = Polled::find_out(Target { fd: backing.raw(), align });
                return Self::Direct { backing, align, worker, polled };
            }
            backing.go_buffered();
        }
        let backing = Arc::new(backing);
        let worker = worker(executor, &backing);
        Self::Buffered { backing, worker }
    }
}

/// A regular file or a block device.
pub struct FileDevice {
    pub(crate) engine: Engine,
    limits: Limits,
    name: String,
    /// That a channel had no ring.
    told: AtomicBool,
}

impl FileDevice {
    /// Opens the file at `path`. Blocks. `executor` starts the threads for what would block later.
    ///
    /// Fails when the file is missing, of another kind, or may not be read, and when it is to be exclusive but is in
    /// use; the error says by whom, where that can be found out.
    pub fn open(path: &Path, options: FileOptions, executor: Arc<dyn Executor>) -> Result<Self, OpenError> {
        Self::open_for(path, options, None, executor)
    }

    /// As [`open`](Self::open), and claims a block device. An exclusive open is then one of the claims' holder's: it
    /// sees to it that nobody of its own shares the device.
    pub fn open_claimed(
        path: &Path,
        options: FileOptions,
        claims: &Claims,
        executor: Arc<dyn Executor>,
    ) -> Result<Self, OpenError> {
        Self::open_for(path, options, Some(claims), executor)
    }

    fn open_for(
        path: &Path,
        options: FileOptions,
        claims: Option<&Claims>,
        executor: Arc<dyn Executor>,
    ) -> Result<Self, OpenError> {
        let spec = path.to_string_lossy();
        let access = Access { read_only: options.read_only, exclusive: options.exclusive, claims };
        let backing = Backing::open(path, &spec, access)?;
        let absolute = path.canonicalize().or_else(|_| std::path::absolute(path));
        let absolute =
            absolute.map_err(|e| OpenError::new(OpenErrorKind::System, &spec, "has no absolute path").because(e))?;
        // A path that is no text is named as it was given.
        let name = absolute.to_str().map_or_else(|| escape(&spec), escape);
        let mut limits = backing.limits();
        let engine = Engine::choose(backing, options, executor, &mut limits);
        Ok(Self { engine, limits, name, told: AtomicBool::new(false) })
    }

    /// Which way its I/O goes.
    pub fn engine(&self) -> FileEngine {
        match &self.engine {
            Engine::Direct { .. } => FileEngine::Direct,
            Engine::Buffered { .. } => FileEngine::Buffered,
            Engine::Mapped { .. } => FileEngine::Mapped,
        }
    }

    fn backing(&self) -> &Backing {
        match &self.engine {
            Engine::Direct { backing, .. } | Engine::Buffered { backing, .. } => backing,
            Engine::Mapped { mapped, .. } => &mapped.backing,
        }
    }

    fn polled(&self) -> Option<&Polled> {
        match &self.engine {
            Engine::Direct { polled, .. } => polled.as_ref(),
            _ => None,
        }
    }

    /// Gives a bio to a worker, from its start.
    fn hand_over(&self, mut bio: Bio) {
        bio.set_word(0);
        self.give(Job::Bio(bio));
    }

    fn give(&self, job: Job) {
        match &self.engine {
            Engine::Direct { worker, .. } | Engine::Buffered { worker, .. } | Engine::Mapped { worker, .. } => {
                worker.give(job)
            }
        }
    }

    #[inline]
    fn submit_direct(&self, cx: &Cx<'_>, backing: &Backing, align: DirectAlign, polled: &Option<Polled>, mut bio: Bio) {
        if let Some(polled) = polled.as_ref().filter(|_| bio.flags().contains(OpFlags::HIPRI)) {
            match self.submit_polled(cx, backing, align, polled, bio) {
                Some(back) => bio = back,
                None => return,
            }
        }
        let (start, len) = (bio.sector().bytes(), bio.sectors().bytes());
        if (start | len) & u64::from(align.block - 1) != 0 && bio.op().has_payload() {
            return bio.end(Status::Invalid);
        }
        let ring = match cx.source(|| Ring::new(cx.id(), file_of)) {
            Ok(ring) => ring,
            // A system call needs no descriptor of its own: slower, but nothing fails for want of one.
            Err(error) => {
                self.tell_once(&error);
                return self.hand_over(bio);
            }
        };
        if bio.op().is_write() && !backing.holds_in_batch(start + len, ring.batch()) {
            return bio.end(Status::Io);
        }
        let ranged = matches!(bio.op(), Op::Discard | Op::WriteZeroes);
        if ranged && (backing.kind == Kind::Block || bio.flags().contains(OpFlags::FUA)) {
            // BLKDISCARD and BLKZEROOUT wait, and fallocate(2) has no flag to sync.
            return self.hand_over(bio);
        }
        ring.start(bio, Target { fd: backing.raw(), align });
    }

    #[cold]
    fn tell_once(&self, error: &io::Error) {
        if !self.told.swap(true, Ordering::Relaxed) {
            tracing::warn!("{}: I/O goes by system calls where a channel has no ring: {error}", self.name);
        }
    }

    /// Puts a bio on a queue that is polled. Gives back what is for the channel's own ring.
    fn submit_polled(
        &self,
        cx: &Cx<'_>,
        backing: &Backing,
        align: DirectAlign,
        polled: &Polled,
        mut bio: Bio,
    ) -> Option<Bio> {
        let aligned = (bio.sector().bytes() | bio.sectors().bytes()) & u64::from(align.block - 1) == 0;
        // A ring that is polled does reads and writes only, and a write that is to be durable sleeps in between.
        let fits = bio.op().has_payload() && !bio.flags().contains(OpFlags::FUA) && aligned;
        if !fits || !polled.works() || (bio.op().is_write() && !backing.holds(bio.end_sector().bytes())) {
            return Some(bio);
        }
        Progress::START.store(&mut bio);
        Polls::of(cx).push(cx, polled.queues(), bio).err()
    }
}

/// A path as an argument of a table that stays one in the concise format: `\` before white space, commas, semicolons
/// and itself.
fn escape(path: &str) -> String {
    let mut out = String::with_capacity(path.len());
    for c in path.chars() {
        if c.is_ascii_whitespace() || matches!(c, ',' | ';' | '\\') {
            out.push('\\');
        }
        out.push(c);
    }
    out
}

/// The file behind a bio of a ring.
fn file_of(device: &dyn BlockDevice) -> &dyn RingFile {
    let file: &FileDevice = device.as_any().downcast_ref().expect("only files use the ring");
    file
}

impl RingFile for FileDevice {
    fn target(&self) -> Target {
        match &self.engine {
            Engine::Direct { backing, align, .. } => Target { fd: backing.raw(), align: *align },
            _ => unreachable!("only direct I/O goes through the ring"),
        }
    }

    fn hand_over(&self, bio: Bio) {
        self.hand_over(bio);
    }
}

impl BlockDevice for FileDevice {
    #[inline]
    fn submit(&self, cx: &Cx<'_>, bio: Bio) -> Option<Bio> {
        if bio.op().is_write() && self.backing().read_only {
            bio.end(Status::ReadOnly);
            return None;
        }
        match &self.engine {
            Engine::Direct { backing, align, polled, .. } => self.submit_direct(cx, backing, *align, polled, bio),
            Engine::Buffered { backing, worker } => buffered::submit(backing, worker, bio),
            Engine::Mapped { mapped, .. } => {
                if let Some(bio) = mapped.submit(bio) {
                    self.hand_over(bio);
                }
            }
        }
        None
    }

    fn sectors(&self) -> Sectors {
        self.backing().sectors()
    }

    fn limits(&self) -> Limits {
        self.limits
    }

    fn id(&self) -> DeviceId {
        self.backing().id
    }

    fn name(&self) -> String {
        self.name.clone()
    }

    fn read_only(&self) -> bool {
        self.backing().read_only
    }

    fn can_poll(&self) -> bool {
        self.polled().is_some_and(|polled| polled.works() && !polled.queues().is_empty())
    }

    fn set_poll_queues(&self, n: u32) -> bool {
        let polled = self.polled();
        polled.inspect(|polled| polled.queues().set_len(n)).is_some()
    }

    fn extents(&self, _: &Cx<'_>, sector: Sector, sectors: Sectors, reply: ExtentsReply) {
        // The file system may have to read, or wait for who writes.
        if self.backing().kind == Kind::Regular {
            self.give(Job::Extents(sector, sectors, reply));
        }
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

#[cfg(test)]
mod tests {
    use super::escape;

    #[test]
    fn escaped_paths() {
        for (path, expect) in [
            ("/tmp/a", "/tmp/a"),
            ("/a b\tc", "/a\\ b\\\tc"),
            ("/a,b;c", "/a\\,b\\;c"),
            (r"/a\b", r"/a\\b"),
            ("/é", "/é"),
        ] {
            assert_eq!(escape(path), expect);
            let back = udm_base::Args::parse(&escape(path)).take().unwrap();
            assert_eq!(back.text, path, "a table gives it back");
        }
    }
}
