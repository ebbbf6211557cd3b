//! A simulated disk with a volatile write cache.

use crate::world::World;
use crate::{Fault, Image, Rng, Sim};
use std::any::Any;
use std::ops::Range;
use udm_base::{Sector, Sectors};
use udm_io::{Bio, BlockDevice, Cx, DeviceId, Limits, Op, OpFlags, Status};

/// What a simulated device is like.
#[derive(Clone, Debug)]
pub struct SimOptions {
    /// The size.
    pub size: Sectors,
    /// How long a bio takes, in nanoseconds: chance picks from this range. Equal ends keep the order.
    pub latency_ns: Range<u64>,
    /// What it says that it can take. Without `write_cache`, every write is durable when it completes.
    pub limits: Limits,
    /// Forgets what is written, but that it was: reads give zeroes. For the data of devices of which only the
    /// metadata counts.
    pub discard_payload: bool,
}

impl SimOptions {
    /// A disk of `size` with a write cache, whose bios take between 10 and 500 µs.
    pub fn new(size: Sectors) -> Self {
        let limits = Limits { write_cache: true, ..Limits::default() };
        Self { size, latency_ns: 10_000..500_000, limits, discard_payload: false }
    }
}

/// A simulated block device.
pub struct SimDevice {
    sim: Sim,
    index: usize,
    options: SimOptions,
}

/// A bio on its way, and how many writes of its device had completed when it was submitted.
pub(crate) struct Pending {
    pub(crate) disk: usize,
    pub(crate) bio: Bio,
    covers: u64,
}

/// The state of a device.
pub(crate) struct Disk {
    /// What would survive whatever happens.
    durable: Image,
    /// What reads see: `durable` and then every write of `cache`.
    current: Image,
    /// Writes that have completed and may still be lost, oldest first.
    cache: Vec<Write>,
    /// Writes that have completed, ever.
    completed: u64,
    faults: Vec<Fault>,
    options: SimOptions,
}

/// A write that may be lost, in whole or in sectors.
struct Write {
    number: u64,
    sector: Sector,
    sectors: Sectors,
    /// `None`: zeroes.
    data: Option<Vec<u8>>,
    /// Parts, as sector numbers, that a later FUA write has made durable another content of.
    dead: Vec<Range<u64>>,
}

impl SimDevice {
    /// A device of a world, all zeroes.
    pub fn new(sim: &Sim, options: SimOptions) -> Self {
        Self::with_image(sim, options, Image::new())
    }

    /// A device that begins with what another left, as after a power cut.
    pub fn with_image(sim: &Sim, options: SimOptions, image: Image) -> Self {
        let mut world = sim.lock();
        world.disks.push(Disk {
            durable: image.clone(),
            current: image,
            cache: Vec::new(),
            completed: 0,
            faults: Vec::new(),
            options: options.clone(),
        });
        let index = world.disks.len() - 1;
        drop(world);
        Self { sim: sim.clone(), index, options }
    }

    /// Has operations fail from now on; the first fault that hits decides.
    pub fn inject(&self, fault: Fault) {
        self.disk(|disk| disk.faults.push(fault));
    }

    /// Takes all faults back.
    pub fn heal(&self) {
        self.disk(|disk| disk.faults.clear());
    }

    /// What reads see now.
    pub fn content(&self) -> Image {
        self.disk(|disk| disk.current.clone())
    }

    /// What would survive a power cut whatever its luck.
    pub fn durable(&self) -> Image {
        self.disk(|disk| disk.durable.clone())
    }

    /// How many completed writes may still be lost.
    pub fn unflushed(&self) -> usize {
        self.disk(|disk| disk.cache.len())
    }

    fn disk<T>(&self, look: impl FnOnce(&mut Disk) -> T) -> T {
        look(&mut self.sim.lock().disks[self.index])
    }

    fn latency(&self, world: &mut World) -> u64 {
        let Range { start, end } = self.options.latency_ns;
        start + world.rng.below(end.saturating_sub(start))
    }
}

impl BlockDevice for SimDevice {
    fn submit(&self, _: &Cx<'_>, bio: Bio) -> Option<Bio> {
        let beyond = bio.sector().checked_add(bio.sectors()).is_none_or(|end| end > self.options.size.from_start());
        let mut world = self.sim.lock();
        let refused = if world.is_off() {
            Some(Status::Gone)
        } else if beyond {
            Some(Status::Invalid)
        } else {
            None
        };
        if let Some(status) = refused {
            drop(world);
            bio.end(status);
            return None;
        }
        let at = self.sim.now().after(self.latency(&mut world));
        let covers = world.disks[self.index].completed;
        world.schedule(at, Pending { disk: self.index, bio, covers });
        None
    }

    fn sectors(&self) -> Sectors {
        self.options.size
    }

    fn limits(&self) -> Limits {
        self.options.limits
    }

    fn id(&self) -> DeviceId {
        DeviceId::Anonymous(std::ptr::from_ref(self) as usize)
    }

    fn name(&self) -> String {
        format!("sim:{}", self.index)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Disk {
    /// Completes a bio: gives it back with how it went.
    pub(crate) fn run(&mut self, pending: Pending) -> (Bio, Status) {
        let Pending { bio, covers, .. } = pending;
        let (op, sector, sectors) = (bio.op(), bio.sector(), bio.sectors());
        let fault = self.faults.iter_mut().find_map(|fault| fault.hits(op, sector, sectors));
        let (status, done) = fault.unwrap_or((Status::Ok, sectors));
        match op {
            Op::Read => self.read(&bio, done),
            Op::Flush if status.is_ok() => self.flush(covers),
            Op::Flush => {}
            Op::Write | Op::Discard | Op::WriteZeroes => self.write(&bio, done, status),
        }
        (bio, status)
    }

    fn read(&self, bio: &Bio, done: Sectors) {
        let mut buf = vec![0; done.as_len()];
        if !self.options.discard_payload {
            self.current.read(bio.sector(), &mut buf);
        }
        bio.copy_in(0, &buf);
    }

    fn flush(&mut self, covers: u64) {
        // Exactly what had completed when the flush was submitted: a device may do more, and none must rely on it.
        let kept = self.cache.iter().position(|w| w.number >= covers).unwrap_or(self.cache.len());
        for write in self.cache.drain(..kept) {
            write.apply(&mut self.durable, 0..u64::MAX);
        }
    }

    fn write(&mut self, bio: &Bio, done: Sectors, status: Status) {
        let number = self.completed;
        self.completed += 1;
        let write = self.write_of(bio, number, done);
        write.apply(&mut self.current, 0..u64::MAX);
        let durable = bio.flags().contains(OpFlags::FUA) || !self.options.limits.write_cache;
        if durable && status.is_ok() {
            let range = write.sector.get()..(write.sector + write.sectors).get();
            for earlier in &mut self.cache {
                if earlier.overlaps(&range) {
                    earlier.dead.push(range.clone());
                }
            }
            write.apply(&mut self.durable, 0..u64::MAX);
        } else {
            self.cache.push(write);
        }
    }

    fn write_of(&self, bio: &Bio, number: u64, done: Sectors) -> Write {
        let data = (bio.op() == Op::Write && !self.options.discard_payload).then(|| {
            let mut data = vec![0; done.as_len()];
            bio.copy_out(0, &mut data);
            data
        });
        Write { number, sector: bio.sector(), sectors: done, data, dead: Vec::new() }
    }

    /// What is on the platters after the power has gone, as chance has it. Of the bios in `flight` part may have
    /// arrived.
    pub(crate) fn survive<'a>(&self, flight: impl Iterator<Item = &'a Bio>, rng: &mut Rng) -> Image {
        let mut image = self.durable.clone();
        let flying: Vec<Write> =
            flight.filter(|bio| bio.op().is_write()).map(|bio| self.write_of(bio, u64::MAX, bio.sectors())).collect();
        let mut writes: Vec<&Write> = self.cache.iter().chain(&flying).collect();
        // Mostly in order; sometimes the cache was written back in another.
        if rng.one_in(4) {
            for i in (1..writes.len()).rev() {
                writes.swap(i, rng.below(i as u64 + 1) as usize);
            }
        }
        // How lucky this cut is: all, none, or any mix.
        let luck = rng.below(5);
        for write in writes {
            write.survive(&mut image, luck, rng);
        }
        image
    }

    /// Has lost its cache, and is left with `image`.
    pub(crate) fn restart_with(&mut self, image: &Image) {
        self.cache.clear();
        self.durable = image.clone();
        self.current = image.clone();
    }
}

impl Write {
    fn overlaps(&self, range: &Range<u64>) -> bool {
        self.sector.get() < range.end && range.start < (self.sector + self.sectors).get()
    }

    /// Kept, lost, or torn.
    fn survive(&self, image: &mut Image, luck: u64, rng: &mut Rng) {
        let len = self.sectors.get();
        match (luck, rng.below(4)) {
            (0, _) | (2.., 0) => {}
            (1, _) | (2.., 1) => self.apply(image, 0..u64::MAX),
            // Torn: cut off after some sectors.
            (_, 2) => self.apply(image, 0..rng.below(len + 1)),
            // Torn: some sectors here and there. A long range is looked at in pieces, so that it costs little.
            _ => {
                let piece = len.div_ceil(1024).max(1);
                for at in (0..len).step_by(piece as usize).filter(|_| rng.one_in(2)) {
                    self.apply(image, at..at + piece);
                }
            }
        }
    }

    /// Does the `part` of the write, in sectors from its start, that is not dead.
    fn apply(&self, image: &mut Image, part: Range<u64>) {
        let first = self.sector.get();
        let (mut at, end) = (first + part.start.min(self.sectors.get()), first + part.end.min(self.sectors.get()));
        while at < end {
            if let Some(dead) = self.dead.iter().find(|dead| dead.contains(&at)) {
                at = dead.end;
                continue;
            }
            let stop = self.dead.iter().map(|dead| dead.start).filter(|start| *start > at).min();
            let stop = stop.map_or(end, |stop| stop.min(end));
            match &self.data {
                Some(data) => {
                    let bytes = Sectors::new(at - first).as_len()..Sectors::new(stop - first).as_len();
                    image.write(Sector::new(at), &data[bytes]);
                }
                None => image.zero(Sector::new(at), Sectors::new(stop - at)),
            }
            at = stop;
        }
    }
}
