//! What is written: a file by dd, through a page cache, to a device. Nothing here knows what the device is.
//!
//! The writer fills the cache at the speed of memory as long as there is room, and waits when there is none. Writes go
//! to the device in the order of the file, as many at a time as the window takes. `dd` ends when all is in the cache;
//! fsync when all is on the device, and the journal after it.

use std::sync::Arc;
use std::time::Duration;
use udm_bench::CompletionMode;
use udm_bench::error::JobError;
use udm_bench::lane::{ChannelLane, Lane};
use udm_bench::queue::{Queue, Slot};
use udm_bench::rng::Rng;
use udm_io::{BlockDevice, Domain, Op, Status};

/// Bytes of a block of the file system.
const BLOCK: u64 = 4096;
/// Where its journal is, and where files begin.
const JOURNAL: u64 = 8 << 20;
const FILES: u64 = 64 << 20;
/// Data that a block of pointers leads to, as in ext3: it holds 1024 of them.
const POINTED: u64 = 4 << 20;

/// How long the writer waits at a time; what it has put into the cache meanwhile goes to the device together.
const TICK: Duration = Duration::from_millis(1);

/// Whether the file is new.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// It is: the journal has its bitmaps and pointers, which find their places later.
    Create,
    /// It is there, and written over (`conv=notrunc`).
    Update,
}

/// In which order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Order {
    Sequential,
    /// Every block of the file once, by chance.
    Random,
}

/// A file that is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Job {
    pub(crate) kind: Kind,
    pub(crate) order: Order,
    /// Bytes of the file.
    pub(crate) total: u64,
    /// Bytes of a write.
    pub(crate) size: u64,
}

/// What it is written through.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Cache {
    /// Bytes that can be dirty.
    pub(crate) dirty: u64,
    /// Bytes that are on their way to the device at most.
    pub(crate) window: u64,
    /// Nanoseconds to copy a block of 4096 bytes into it.
    pub(crate) block_ns: u64,
}

impl Cache {
    /// Of a machine of 2007: a quarter of a gigabyte of dirty pages, 600 MB/s.
    pub(crate) const OF_2007: Self = Self { dirty: 256 << 20, window: 64 << 20, block_ns: 6827 };

    /// None: writes go to the device, as with direct I/O.
    pub(crate) const fn none(window: u64) -> Self {
        Self { dirty: u64::MAX, window, block_ns: 0 }
    }
}

/// How long it took, in nanoseconds from the start.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Times {
    /// Until the last write was in the cache.
    pub(crate) written: u64,
    /// Until all was on the device.
    pub(crate) synced: u64,
}

/// A write: where, and how long.
type Request = (u64, u64);

impl Job {
    /// The device has to be this large.
    pub(crate) fn reaches(&self) -> u64 {
        FILES + self.total
    }

    /// The writes of the file, and those of the journal, which follow when all of the file is there.
    fn requests(&self, seed: u64) -> (Vec<Request>, Vec<Request>) {
        let mut data = Vec::with_capacity((self.total / self.size) as usize + 1);
        for start in (0..self.total).step_by(self.size as usize) {
            data.push((FILES + start, self.size.min(self.total - start)));
        }
        if self.order == Order::Random {
            let mut rng = Rng::new(seed, 0);
            for i in (1..data.len()).rev() {
                data.swap(i, rng.below(i as u64 + 1) as usize);
            }
        }
        // A descriptor, the inode and the commit; of a new file also its bitmap, its group and its pointers.
        let blocks = match self.kind {
            Kind::Update => 3,
            Kind::Create => 5 + self.total.div_ceil(POINTED),
        };
        let journal = (0..blocks).map(|block| (JOURNAL + block * BLOCK, BLOCK)).collect();
        (data, journal)
    }

    /// Writes the file to `dev`, and returns how long it took by the domain's clock. Blocks as long.
    pub(crate) fn run(
        &self,
        domain: &Domain,
        dev: Arc<dyn BlockDevice>,
        cache: Cache,
        seed: u64,
    ) -> Result<Times, JobError> {
        let (data, journal) = self.requests(seed);
        let depth = (cache.window / self.size).max(1) as usize;
        let lane = ChannelLane::new(domain.channel()?, dev, depth, CompletionMode::Interrupt);
        let len = self.size.max(BLOCK) as usize;
        Queue::run(
            lane,
            depth,
            len,
            |_| (),
            |queue, slots| {
                let clock = &**domain.clock();
                let start = clock.now();
                let mut writer = Writer { queue, slots, done: 0, out: vec![(0, 0); depth] };
                // How long the writer has been at it, and how much it has put into the cache.
                let (mut spent, mut cached, mut taken, mut sent) = (0, 0, 0, 0);
                while taken < data.len() || writer.out() > 0 {
                    let now = clock.now().since(start);
                    let mut waits = true;
                    while let Some((_, len)) =
                        data.get(taken).filter(|(_, len)| cached + len - writer.done <= cache.dirty)
                    {
                        let next = spent + len * cache.block_ns / BLOCK;
                        if next > now {
                            waits = false;
                            break;
                        }
                        (spent, cached, taken) = (next, cached + len, taken + 1);
                    }
                    if waits && taken < data.len() {
                        // No room: its time stands still.
                        spent = now;
                    }
                    while sent < taken && writer.send(data[sent]) {
                        sent += 1;
                    }
                    writer.collect()?;
                }
                let written = spent;
                for request in journal {
                    while !writer.send(request) {
                        writer.collect()?;
                    }
                }
                while writer.out() > 0 {
                    writer.collect()?;
                }
                writer.flush();
                while writer.out() > 0 {
                    writer.collect()?;
                }
                Ok(Times { written, synced: clock.now().since(start) })
            },
        )
    }
}

/// What is on its way.
struct Writer<'a, L: Lane> {
    queue: &'a mut Queue<L>,
    slots: Vec<Slot>,
    /// Bytes that have arrived.
    done: u64,
    /// By slot.
    out: Vec<Request>,
}

impl<L: Lane> Writer<'_, L> {
    fn out(&self) -> usize {
        self.out.len() - self.slots.len()
    }

    /// False when the window is full.
    fn send(&mut self, request: Request) -> bool {
        let Some(slot) = self.slots.pop() else { return false };
        self.out[slot.index()] = request;
        self.queue.submit_part(slot, Op::Write, request.0, request.1 as usize);
        true
    }

    /// Flushes the device. Nothing is on its way.
    fn flush(&mut self) {
        let slot = self.slots.pop().expect("every slot is here");
        self.out[slot.index()] = (0, 0);
        self.queue.submit_part(slot, Op::Flush, 0, 0);
    }

    /// Takes in what has arrived, or waits a little.
    fn collect(&mut self) -> Result<(), JobError> {
        self.queue.poll();
        let mut any = false;
        while let Some((slot, status)) = self.queue.completed() {
            let (byte, bytes) = self.out[slot.index()];
            if status != Status::Ok {
                return Err(JobError::Failed { op: Op::Write, byte, bytes: bytes as usize, status });
            }
            self.done += bytes;
            self.slots.push(slot);
            any = true;
        }
        if !any {
            self.queue.idle_for(TICK)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use udm_base::Sectors;
    use udm_sim::{Keep, RotatingDisk, RotatingOptions, Sim};

    fn job(kind: Kind, order: Order, total: u64, size: u64) -> Job {
        Job { kind, order, total, size }
    }

    #[test]
    fn every_block_once() {
        for (order, size, total) in [(Order::Sequential, 4096, 9 << 20), (Order::Random, 65536, 9 << 20)] {
            let (mut data, journal) = job(Kind::Create, order, total, size).requests(7);
            assert_eq!(data.iter().map(|(_, len)| len).sum::<u64>(), total);
            assert_eq!(data.is_sorted(), order == Order::Sequential);
            data.sort_unstable();
            assert!(data.windows(2).all(|w| w[0].0 + w[0].1 == w[1].0), "no gap, nothing twice");
            assert_eq!(journal.len(), 8);
            assert_eq!(job(Kind::Update, order, total, size).requests(7).1.len(), 3);
        }
    }

    #[test]
    fn the_cache_takes_what_fits() {
        let run = |total: u64, dirty| {
            let sim = Sim::new(1);
            let size = Sectors::in_bytes(1 << 30);
            let disk =
                RotatingDisk::new(&sim, RotatingOptions { keep: Keep::Nothing, ..RotatingOptions::desktop(size) });
            let cache = Cache { dirty, ..Cache::OF_2007 };
            let job = job(Kind::Update, Order::Sequential, total, 65536);
            let Ok(times) = job.run(&sim.domain(), Arc::new(disk), cache, 1) else { panic!("it can be written") };
            (total as f64 * 1e3 / times.written as f64, total as f64 * 1e3 / times.synced as f64)
        };
        let (written, synced) = run(32 << 20, 64 << 20);
        assert!((590.0..610.0).contains(&written), "at the speed of memory: {written}");
        assert!((60.0..72.0).contains(&synced), "at that of the disk: {synced}");
        let (written, _) = run(128 << 20, 64 << 20);
        assert!((110.0..160.0).contains(&written), "half of it had to wait: {written}");
        assert_eq!(run(32 << 20, 64 << 20), run(32 << 20, 64 << 20));
    }
}
