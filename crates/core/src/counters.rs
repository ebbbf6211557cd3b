//! Counters that only their channel writes.

use crate::Polls;
use std::ops::AddAssign;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use udm_base::Sectors;
use udm_io::{Bio, Cx, IoAccounting, MAX_CHANNELS, Op, PollPath};

/// A number that one thread at a time writes (the one inside the channel) and any may read.
#[derive(Default)]
struct Count(AtomicU64);

impl Count {
    #[inline]
    fn add(&self, n: u64) {
        // Not an atomic read-modify-write: there is one writer.
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// What one channel did with one device, in a cache line of its own.
#[derive(Default)]
#[repr(align(64))]
pub(crate) struct Counters {
    reads: Count,
    read_sectors: Count,
    writes: Count,
    write_sectors: Count,
    others: Count,
    remapped: Count,
    cloned: Count,
    in_flight: Count,
}

impl Counters {
    #[inline]
    pub(crate) fn arrived(&self, bio: &Bio) {
        self.note(bio.op(), bio.sectors());
    }

    #[inline]
    pub(crate) fn remapped(&self) {
        self.remapped.add(1);
    }

    #[inline]
    pub(crate) fn cloned(&self) {
        self.cloned.add(1);
    }

    #[inline]
    pub(crate) fn begin(&self) {
        self.in_flight.add(1);
    }

    /// A read or write that goes on as it is: it has arrived, is remapped, and in flight.
    #[inline(always)]
    pub(crate) fn shifted(&self, bio: &Bio) {
        let (ios, sectors) = match bio.op() {
            Op::Write => (&self.writes, &self.write_sectors),
            _ => (&self.reads, &self.read_sectors),
        };
        ios.add(1);
        sectors.add(bio.sectors().get());
        self.remapped();
        self.begin();
    }

    /// The last thing that a bio does with a path or device; who sees it sees all that the bio did there, and may free
    /// it.
    #[inline]
    pub(crate) fn end(&self) {
        self.in_flight.0.store(self.in_flight.get().wrapping_sub(1), Ordering::Release);
    }
}

impl IoAccounting for Counters {
    #[inline]
    fn note(&self, op: Op, sectors: Sectors) {
        match op {
            Op::Read => {
                self.reads.add(1);
                self.read_sectors.add(sectors.get());
            }
            Op::Write => {
                self.writes.add(1);
                self.write_sectors.add(sectors.get());
            }
            Op::Flush | Op::Discard | Op::WriteZeroes => self.others.add(1),
        }
    }
}

/// Polled bios of one channel with one device, by the numbers of [`PollPath`].
#[derive(Default)]
#[repr(align(64))]
struct PolledCounters([Count; 3]);

/// One of something for each channel.
type Each<T> = Box<[T; MAX_CHANNELS]>;

fn each<T: Default>() -> Each<T> {
    let all: Box<[T]> = (0..MAX_CHANNELS).map(|_| T::default()).collect();
    all.try_into().unwrap_or_else(|_| unreachable!("made for so many"))
}

/// [`Counters`] for every channel: 16 KiB, and as much again where bios may be polled for.
pub(crate) struct PerChannel {
    counters: Each<Counters>,
    polled: OnceLock<Each<PolledCounters>>,
}

impl PerChannel {
    pub(crate) fn new() -> Self {
        Self { counters: each(), polled: OnceLock::new() }
    }

    #[inline]
    pub(crate) fn of(&self, cx: &Cx<'_>) -> &Counters {
        &self.counters[cx.id()]
    }

    /// From here on bios that are polled for are counted: called before the first of them can arrive, so that none
    /// finds it to be done.
    pub(crate) fn expect_polls(&self) {
        self.polled.get_or_init(each);
    }

    /// Counts a bio that was polled for.
    #[inline]
    pub(crate) fn polled(&self, cx: &Cx<'_>, path: PollPath) {
        if let Some(polled) = self.polled.get() {
            polled[cx.id()].0[path as usize].add(1);
        }
    }

    /// Counts a bio that has come back: as polled for, if it was, and out.
    #[inline]
    pub(crate) fn left(&self, cx: &Cx<'_>, bio: &Bio) {
        if let Some(path) = bio.poll_path() {
            self.polled(cx, path);
        }
        self.of(cx).end();
    }

    fn polls(&self) -> Polls {
        let mut sum = Polls::default();
        for c in self.polled.get().into_iter().flat_map(|polled| polled.iter()) {
            let [fast, sub, default] = &c.0;
            sum += Polls { fast: fast.get(), sub: sub.get(), default: default.get() };
        }
        sum
    }

    pub(crate) fn in_flight(&self) -> u64 {
        self.counters.iter().map(|c| c.in_flight.0.load(Ordering::Acquire)).fold(0, u64::wrapping_add)
    }

    pub(crate) fn totals(&self) -> Totals {
        let mut sum = Totals { polls: self.polls(), ..Totals::default() };
        for c in self.counters.iter() {
            sum += Totals {
                reads: c.reads.get(),
                read_sectors: c.read_sectors.get(),
                writes: c.writes.get(),
                write_sectors: c.write_sectors.get(),
                others: c.others.get(),
                remapped: c.remapped.get(),
                cloned: c.cloned.get(),
                polls: Polls::default(),
            };
        }
        sum
    }
}

/// What a device did since it was made.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Totals {
    /// Reads that arrived.
    pub reads: u64,
    /// Sectors of them.
    pub read_sectors: u64,
    /// Writes that arrived.
    pub writes: u64,
    /// Sectors of them.
    pub write_sectors: u64,
    /// Flushes, discards and write zeroes that arrived.
    pub others: u64,
    /// Bios that went on as they were: the submitter's own record, no clone.
    pub remapped: u64,
    /// Clones that were made.
    pub cloned: u64,
    /// Bios that were polled for, by what was looked into.
    pub polls: Polls,
}

impl AddAssign for Totals {
    fn add_assign(&mut self, o: Self) {
        self.reads += o.reads;
        self.read_sectors += o.read_sectors;
        self.writes += o.writes;
        self.write_sectors += o.write_sectors;
        self.others += o.others;
        self.remapped += o.remapped;
        self.cloned += o.cloned;
        self.polls += o.polls;
    }
}
