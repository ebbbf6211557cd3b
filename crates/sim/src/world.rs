//! The world of a simulation: its clock, its chance, its devices, and the power that they share.

use crate::device::{Disk, Pending};
use crate::rotating::Spindle;
use crate::{Image, Rng, SimExecutor};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use udm_io::{Bio, Clock, Domain, DomainBuilder, Nanos, Status};

/// How far time moves when nobody says until when: a drain waits for something that has its own timer.
const STEP_NS: u64 = 100_000;
/// Rounds in which time passes and nothing happens, after which the simulation counts as stuck.
const STUCK: u64 = 1_000_000;

/// The clock of a simulation: it stands still until the world moves it.
#[derive(Debug, Default)]
pub struct SimClock(AtomicU64);

impl SimClock {
    /// Moves time on to `at`, never back.
    pub fn advance_to(&self, at: Nanos) {
        self.0.fetch_max(at.0, Ordering::SeqCst);
    }
}

impl Clock for SimClock {
    fn now(&self) -> Nanos {
        Nanos(self.0.load(Ordering::SeqCst))
    }
}

/// A simulated world. Clones are the same world.
#[derive(Clone)]
pub struct Sim(Arc<Shared>);

struct Shared {
    clock: Arc<SimClock>,
    world: Mutex<World>,
}

pub(crate) struct World {
    pub(crate) rng: Rng,
    pub(crate) disks: Vec<Disk>,
    pub(crate) rotating: Vec<Spindle>,
    events: BinaryHeap<Reverse<Event>>,
    sequence: u64,
    /// Writes that have completed, on all devices, and after how many the power goes.
    writes: u64,
    cut_at: Option<u64>,
    /// What was left on the platters when the power went.
    images: Option<Vec<Image>>,
    idle_rounds: u64,
}

/// A bio whose time comes.
struct Event {
    at: Nanos,
    sequence: u64,
    pending: Pending,
}

impl PartialEq for Event {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}
impl Eq for Event {}
impl PartialOrd for Event {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Event {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.sequence).cmp(&(other.at, other.sequence))
    }
}

impl Sim {
    /// The world of a seed, without devices.
    pub fn new(seed: u64) -> Self {
        let world = World {
            rng: Rng::new(seed),
            disks: Vec::new(),
            rotating: Vec::new(),
            events: BinaryHeap::new(),
            sequence: 0,
            writes: 0,
            cut_at: None,
            images: None,
            idle_rounds: 0,
        };
        Self(Arc::new(Shared { clock: Arc::default(), world: Mutex::new(world) }))
    }

    /// A domain on this world's clock, without threads. A channel that waits lets time pass.
    ///
    /// # Panics
    /// Its channels do, when they wait and nothing can happen any more: a hang, told at once.
    pub fn domain(&self) -> Domain {
        let sim = self.clone();
        DomainBuilder::default()
            .clock(self.0.clock.clone())
            .executor(Arc::new(SimExecutor))
            .idle(move |timer| sim.idle(timer))
            .build()
    }

    /// The world's clock.
    pub fn clock(&self) -> &Arc<SimClock> {
        &self.0.clock
    }

    /// How many writes (discards and zero writes too) have completed, on all devices.
    pub fn writes(&self) -> u64 {
        self.lock().writes
    }

    /// Has the power go when the `n`th write from the start would complete, counted from 1: it and every later bio
    /// fails.
    pub fn cut_at_write(&self, n: u64) {
        self.lock().cut_at = Some(n);
    }

    /// Whether the power is gone.
    pub fn is_off(&self) -> bool {
        self.lock().images.is_some()
    }

    /// Takes the power from all devices, if it is not gone already: every bio in flight and every later one fails with
    /// [`Status::Gone`]. Returns what is on each device's platters, in the order in which the devices were made.
    pub fn power_cut(&self) -> Vec<Image> {
        let mut world = self.lock();
        let gone = world.cut();
        let images = world.images.clone().expect("the power is gone");
        drop(world);
        gone.into_iter().for_each(|bio| bio.end(Status::Gone));
        images
    }

    /// What would be on each device's platters if the power went now, in the order in which the devices were made. The
    /// world goes on: many cuts can be looked at in one run.
    pub fn what_if(&self) -> Vec<Image> {
        let mut world = self.lock();
        match &world.images {
            Some(images) => images.clone(),
            None => world.survivors(),
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, World> {
        self.0.world.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn now(&self) -> Nanos {
        self.0.clock.now()
    }

    /// Lets time pass until the next event, or `timer`, and completes what is due.
    fn idle(&self, timer: Option<Nanos>) {
        let mut world = self.lock();
        // What was submitted up to now is what a disk chooses from.
        let turned = world.rotating.iter().filter_map(|disk| disk.turn(self.now())).min();
        let next = world.events.peek().map(|Reverse(e)| e.at);
        match next.into_iter().chain(turned).chain(timer).min() {
            Some(at) => {
                world.idle_rounds = 0;
                self.0.clock.advance_to(at);
            }
            None => {
                world.idle_rounds += 1;
                assert!(
                    world.idle_rounds < STUCK,
                    "the simulation is stuck: something waits, and nothing is in flight"
                );
                self.0.clock.advance_to(self.now().after(STEP_NS));
            }
        }
        let now = self.now();
        let landed: Vec<Bio> = world.rotating.iter().flat_map(|disk| disk.done(now)).collect();
        if !landed.is_empty() {
            // Outside the lock: a bio that ends may submit the next.
            drop(world);
            landed.into_iter().for_each(|bio| bio.end(Status::Ok));
            world = self.lock();
        }
        while world.events.peek().is_some_and(|Reverse(e)| e.at <= now) {
            let Reverse(Event { pending, .. }) = world.events.pop().expect("just seen");
            let ended = world.run(pending);
            // Outside the lock: a bio that ends may submit the next.
            drop(world);
            ended.into_iter().for_each(|(bio, status)| bio.end(status));
            world = self.lock();
        }
    }
}

impl World {
    pub(crate) fn schedule(&mut self, at: Nanos, pending: Pending) {
        self.sequence += 1;
        self.events.push(Reverse(Event { at, sequence: self.sequence, pending }));
    }

    /// Does what a bio asks for, and says which bios end how.
    fn run(&mut self, pending: Pending) -> Vec<(Bio, Status)> {
        if self.images.is_some() {
            return vec![(pending.bio, Status::Gone)];
        }
        if pending.bio.op().is_write() {
            if self.cut_at.is_some_and(|n| self.writes + 1 >= n) {
                self.schedule(Nanos(0), pending);
                return self.cut().into_iter().map(|bio| (bio, Status::Gone)).collect();
            }
            self.writes += 1;
        }
        let (bio, status) = self.disks[pending.disk].run(pending);
        vec![(bio, status)]
    }

    /// Takes the power. Returns the bios that were in flight.
    fn cut(&mut self) -> Vec<Bio> {
        if self.images.is_some() {
            return Vec::new();
        }
        let images = self.survivors();
        for (disk, image) in self.disks.iter_mut().zip(&images) {
            disk.restart_with(image);
        }
        self.images = Some(images);
        let mut flying: Vec<Event> = self.events.drain().map(|Reverse(e)| e).collect();
        flying.sort_by_key(|e| e.sequence);
        let spinning: Vec<Bio> = self.rotating.iter().flat_map(Spindle::cut).collect();
        flying.into_iter().map(|e| e.pending.bio).chain(spinning).collect()
    }

    /// What is on the platters if the power goes now, as chance has it.
    fn survivors(&mut self) -> Vec<Image> {
        let mut flying: Vec<&Event> = self.events.iter().map(|Reverse(e)| e).collect();
        flying.sort_by_key(|e| e.sequence);
        let rng = &mut self.rng;
        let of = |index: usize| flying.iter().map(|e| &e.pending).filter(move |p| p.disk == index);
        self.disks.iter().enumerate().map(|(index, disk)| disk.survive(of(index).map(|p| &p.bio), rng)).collect()
    }

    pub(crate) fn is_off(&self) -> bool {
        self.images.is_some()
    }
}
