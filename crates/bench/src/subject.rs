//! What is measured, and one measurement of it.

use crate::error::JobError;
use crate::floor::Floor;
use crate::front::{self, Disk};
use crate::lane::{ChannelLane, FloorLane, Lane};
use crate::latency::{ByOp, Latencies, Sampled, Untimed};
use crate::load::{CompletionMode, Fill, Lat, Load, Span};
use crate::pattern::Pattern;
use crate::queue::Queue;
use crate::rng::Rng;
use crate::verify::{self, Verifier};
use crate::{Error, crew, fill, job};
use std::path::Path;
use std::sync::Arc;
use udm_base::Sectors;
use udm_core::{HostRequest, MappedDevice, Totals};
use udm_io::{BlockDevice, Domain, Nanos};

/// A device, or plain copies.
#[derive(Clone)]
pub struct Subject {
    name: String,
    kind: Kind,
    /// Nobody else has data on it.
    own: bool,
}

#[derive(Clone)]
enum Kind {
    Device(Arc<dyn BlockDevice>),
    Memcpy(Arc<Floor>),
    VhostUser(Arc<Disk>),
}

/// What was done in one direction.
#[derive(Clone, Default)]
pub struct Tally {
    /// Requests.
    pub ios: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// How long those took that were measured.
    pub latencies: Latencies,
}

/// What a measurement found.
#[derive(Clone, Default)]
pub struct Outcome {
    /// Reads.
    pub reads: Tally,
    /// Writes.
    pub writes: Tally,
    /// From the start of the first job to the end of the last, in nanoseconds.
    pub elapsed_ns: u64,
}

impl Outcome {
    /// Requests of both directions a second.
    pub fn iops(&self) -> f64 {
        self.per_second(self.reads.ios + self.writes.ios)
    }

    /// So many in the measured time, a second.
    pub fn per_second(&self, count: u64) -> f64 {
        if self.elapsed_ns == 0 { 0.0 } else { count as f64 * 1e9 / self.elapsed_ns as f64 }
    }

    /// Adds the outcome of another round.
    pub fn add(&mut self, other: &Self) {
        for (sum, more) in [(&mut self.reads, &other.reads), (&mut self.writes, &other.writes)] {
            sum.ios += more.ios;
            sum.bytes += more.bytes;
            sum.latencies.add(&more.latencies);
        }
        self.elapsed_ns += other.elapsed_ns;
    }
}

/// The name of plain copies as a subject.
pub(crate) const MEMCPY: &str = "memcpy";

impl Subject {
    /// A device that was made for the measurement.
    pub fn device(name: &str, dev: Arc<dyn BlockDevice>) -> Self {
        Self { name: name.to_owned(), kind: Kind::Device(dev), own: true }
    }

    /// A device that was there before, so that what it holds may be dear to someone.
    pub fn shared(name: &str, dev: Arc<dyn BlockDevice>) -> Self {
        Self { own: false, ..Self::device(name, dev) }
    }

    /// Opens a path, a `null:` device or the URI of a remote export, as [`shared`](Self::shared), to be called `name`.
    /// Blocks.
    pub fn open(domain: &Domain, name: &str, spec: &str, read_only: bool) -> Result<Self, Error> {
        let request = HostRequest { spec, cwd: Path::new("."), read_only, exclusive: false, cancel: &|| false };
        let dev = udm_stack::open(domain, &request).map_err(|e| Error::Stack(e.message))?;
        Ok(Self::shared(name, dev))
    }

    /// A disk that is served on a unix socket over vhost-user, as [`shared`](Self::shared). Blocks.
    pub fn vhost_user(name: &str, path: &Path) -> Result<Self, Error> {
        let kind = Kind::VhostUser(Arc::new(Disk::open(path)?));
        Ok(Self { name: name.to_owned(), kind, own: false })
    }

    /// Plain copies from and to `bytes` of memory made as the `ram` target's. Takes address space only.
    pub fn memcpy(bytes: u64) -> Result<Self, Error> {
        let floor =
            Floor::new(bytes).map_err(|source| Error::System { what: format!("memcpy over {bytes} bytes"), source })?;
        Ok(Self { name: MEMCPY.to_owned(), kind: Kind::Memcpy(Arc::new(floor)), own: true })
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// How large it is.
    pub fn sectors(&self) -> Sectors {
        match &self.kind {
            Kind::Device(dev) => dev.sectors(),
            Kind::Memcpy(floor) => Sectors::in_bytes(floor.len()),
            Kind::VhostUser(disk) => disk.sectors(),
        }
    }

    /// Whether polled requests are polled for.
    pub fn can_poll(&self) -> bool {
        matches!(&self.kind, Kind::Device(dev) if dev.can_poll())
    }

    /// What a mapped device has counted since it was made.
    pub fn totals(&self) -> Option<Totals> {
        match &self.kind {
            Kind::Device(dev) => dev.as_any().downcast_ref::<MappedDevice>().map(MappedDevice::totals),
            Kind::Memcpy(_) | Kind::VhostUser(_) => None,
        }
    }

    /// Whether it is written before it is measured.
    pub fn fills(&self, load: &Load) -> bool {
        match load.fill {
            Fill::BeforeReads => self.own && load.rw.reads(),
            Fill::Yes => true,
            Fill::No => false,
        }
    }

    /// Checks that `load` fits, and gives the part that it uses.
    pub fn span(&self, load: &Load) -> Result<Span, Error> {
        load.check()?;
        let span = load.span_of(&self.name, self.sectors())?;
        let read_only = match &self.kind {
            Kind::Device(dev) => dev.read_only(),
            Kind::Memcpy(_) => false,
            Kind::VhostUser(disk) => disk.read_only(),
        };
        if read_only && (load.rw.writes() || self.fills(load)) {
            let text = format!("{} is read-only; expected --rw=read or randread, with --no-fill", self.name);
            return Err(Error::Load(text));
        }
        if load.verify.is_some() {
            verify::check_span(span)?;
        }
        Ok(span)
    }

    /// Writes pseudo-random data to the part that `load` uses. Blocks as long as that takes.
    pub fn fill(&self, domain: &Domain, load: &Load) -> Result<(), Error> {
        let (bytes, seed) = (self.span(load)?.bytes(), load.seed);
        let me = self.clone();
        let _round = self.begin(1, fill::FILL_DEPTH, fill::BLOCK, CompletionMode::Interrupt)?;
        let filled = crew::run(domain, 1, &self.name, {
            let domain = domain.clone();
            move |_, ready| {
                ready.wait();
                me.on_lane(&domain, 0, fill::FILL_DEPTH, CompletionMode::Interrupt, FillIt { bytes, seed })
            }
        });
        filled.map(|_| ()).map_err(|e| match e {
            Error::Io { .. } => Error::Load(format!("{e}, while it was filled; --no-fill leaves it as it is")),
            e => e,
        })
    }

    /// Makes the subject ready for a round, which ends when what it gives is dropped.
    fn begin(
        &self,
        jobs: usize,
        depth: usize,
        len: usize,
        mode: CompletionMode,
    ) -> Result<Option<front::Begun>, Error> {
        match &self.kind {
            Kind::VhostUser(disk) => front::begin(disk, jobs, depth, len, mode).map(Some),
            Kind::Device(_) | Kind::Memcpy(_) => Ok(None),
        }
    }

    fn on_lane<W: OnLane>(
        &self,
        domain: &Domain,
        job: usize,
        depth: usize,
        mode: CompletionMode,
        work: W,
    ) -> Result<W::Out, JobError> {
        match &self.kind {
            Kind::Device(dev) => work.run(ChannelLane::new(domain.channel()?, dev.clone(), depth, mode)),
            Kind::Memcpy(floor) => work.run(FloorLane::new(floor.clone(), depth)),
            Kind::VhostUser(disk) => work.run(disk.lane(job, domain.clock().clone())),
        }
    }
}

/// Work that is compiled for each kind of lane.
trait OnLane {
    type Out;
    fn run<L: Lane>(self, lane: L) -> Result<Self::Out, JobError>;
}

struct FillIt {
    bytes: u64,
    seed: u64,
}

impl OnLane for FillIt {
    type Out = ();
    fn run<L: Lane>(self, lane: L) -> Result<(), JobError> {
        fill::fill(lane, self.bytes, self.seed)
    }
}

struct JobIt<'a> {
    load: &'a Load,
    span: Span,
    job: usize,
    fills: bool,
    domain: &'a Domain,
    ready: crew::Ready,
}

impl OnLane for JobIt<'_> {
    type Out = job::JobTally;

    fn run<L: Lane>(self, lane: L) -> Result<job::JobTally, JobError> {
        let Self { load, span, job, fills, domain, ready } = self;
        let clock = &**domain.clock();
        if let Some(kind) = load.verify {
            let verifier = Verifier::new(load, kind, span, job);
            let done = verifier.run(lane, load, fills, clock, || ready.wait())?;
            let latencies = ByOp::default();
            return Ok(job::JobTally {
                reads: done.reads,
                writes: done.writes,
                start: done.start,
                end: done.end,
                latencies,
            });
        }
        let pattern = Pattern::new(load, span, job);
        let mut content = Rng::new(load.seed, !(job as u64));
        let init = |buffers: &mut [u8]| fill::random(buffers, &mut content);
        Queue::run(lane, load.iodepth, span.bs as usize, init, |queue, slots| {
            let depth = load.iodepth;
            match load.lat {
                Lat::Off => {
                    let start = ready.wait();
                    job::run(queue, slots, pattern, load, span, (clock, start), Untimed)
                }
                Lat::Sample(every) => {
                    let timing = Sampled::new(clock, every, depth);
                    let start = ready.wait();
                    job::run(queue, slots, pattern, load, span, (clock, start), timing)
                }
            }
        })
    }
}

/// Measures `subject` once, without filling it. Blocks as long as `load` says.
pub fn measure(domain: &Domain, subject: &Subject, load: &Load) -> Result<Outcome, Error> {
    let span = subject.span(load)?;
    let (me, load, domain_of_jobs) = (subject.clone(), load.clone(), domain.clone());
    let bs = span.bs;
    let _round = subject.begin(load.numjobs, load.iodepth, bs as usize, load.completion)?;
    let jobs = crew::run(domain, load.numjobs, &subject.name, move |job, ready| {
        let domain = &domain_of_jobs;
        let it = JobIt { load: &load, span, job, fills: me.fills(&load), domain, ready };
        me.on_lane(domain, job, load.iodepth, load.completion, it)
    })?;
    let mut out = Outcome::default();
    let (mut start, mut end) = (Nanos(u64::MAX), Nanos(0));
    for job in jobs {
        let both =
            [(&mut out.reads, job.reads, &job.latencies.reads), (&mut out.writes, job.writes, &job.latencies.writes)];
        for (tally, ios, latencies) in both {
            tally.ios += ios;
            tally.bytes += ios * bs;
            tally.latencies.add(latencies);
        }
        (start, end) = (start.min(job.start), end.max(job.end));
    }
    out.elapsed_ns = end.since(start);
    Ok(out)
}
