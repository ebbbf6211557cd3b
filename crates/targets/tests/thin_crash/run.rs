//! One seed: a pool that is used at random, looked at as if the power had gone at many moments, and really cut at the
//! end.

use crate::pool::{BLOCK, BLOCKS, Existence, Known, Pool, Spec, look};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use udm_base::{Sector, Sectors};
use udm_core::{MappedDevice, SuspendOptions};
use udm_io::{Attached, Channel, Op, OpFlags, Status};
use udm_sim::history::{Effect, History, Operation, fill};
use udm_sim::{Fault, Image, Rng};

/// What kind of life a pool leads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Plan {
    /// There is a block for every block of every volume.
    Roomy,
    /// Snapshots are made and deleted often.
    Snapshots,
    /// Volumes have more blocks than the pool, which gives errors.
    Short,
    /// A write fails.
    Failing,
}

/// What was looked at.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Outcome {
    pub(crate) points: u64,
    pub(crate) writes: u64,
    flushes: u64,
    messages: u64,
    errors: u64,
}

impl std::ops::AddAssign for Outcome {
    fn add_assign(&mut self, more: Self) {
        self.points += more.points;
        self.writes += more.writes;
        self.flushes += more.flushes;
        self.messages += more.messages;
        self.errors += more.errors;
    }
}

/// A volume that is live.
struct Volume {
    md: Arc<MappedDevice>,
    at: Attached,
    history: History,
}

/// A bio that is out.
struct Flight {
    volume: u32,
    op: Op,
    flags: OpFlags,
    range: Range<u64>,
    operation: Operation,
    memory: Box<[u8]>,
}

/// As many volumes as there are.
const VOLUMES: u32 = 4;
/// As many bios as are out at a time.
const DEPTH: usize = 8;
/// Cuts in the life of one pool.
const LIVES: u64 = 3;

struct Life {
    plan: Plan,
    spec: Spec,
    pool: Pool,
    channel: Channel,
    rng: Rng,
    volumes: BTreeMap<u32, Volume>,
    flights: BTreeMap<u64, Flight>,
    next_token: u64,
    next_value: u64,
    outcome: Outcome,
    /// Volumes of which a message that failed leaves open whether they are there.
    doubt: BTreeMap<u32, History>,
}

/// Runs one seed.
pub(crate) fn run(plan: Plan, seed: u64) -> Outcome {
    let mut rng = Rng::new(seed);
    let spec = spec(plan, &mut rng);
    let mut images = vec![Image::new(), Image::new()];
    let mut volumes: BTreeMap<u32, History> = BTreeMap::new();
    let mut outcome = Outcome::default();
    for _ in 0..LIVES {
        let mut life = Life::begin(plan, &spec, images, &volumes, &mut rng);
        life.lead();
        outcome += life.outcome;
        let known = life.known();
        images = life.end();
        volumes = look(&spec, images.clone(), &known, rng.next());
        outcome.points += 1;
        if plan == Plan::Failing {
            break;
        }
    }
    outcome
}

fn spec(plan: Plan, rng: &mut Rng) -> Spec {
    let mut features = Vec::new();
    let mut maybe = |features: &mut Vec<_>, one_in, feature| {
        if rng.one_in(one_in) {
            features.push(feature);
        }
    };
    maybe(&mut features, 6, "ignore_discard");
    maybe(&mut features, 4, "no_discard_passdown");
    maybe(&mut features, 3, "enable_zero_writes");
    if !features.contains(&"enable_zero_writes") {
        maybe(&mut features, 3, "unmap_zero_writes");
    }
    let whole = BLOCKS * u64::from(VOLUMES);
    // While sharing is broken both blocks are in use, for each piece of each bio that is out.
    let data_blocks = if plan == Plan::Short { whole / 2 } else { whole + 3 * DEPTH as u64 };
    if plan == Plan::Short || rng.one_in(2) {
        features.push("error_if_no_space");
    }
    Spec { data_blocks, features }
}

impl Life {
    fn begin(plan: Plan, spec: &Spec, images: Vec<Image>, volumes: &BTreeMap<u32, History>, rng: &mut Rng) -> Self {
        let pool =
            Pool::open(spec, images, rng.next(), false).unwrap_or_else(|e| panic!("the pool does not open: {e}"));
        let channel = pool.domain.channel().expect("a channel");
        let mut life = Self {
            plan,
            spec: spec.clone(),
            pool,
            channel,
            rng: Rng::new(rng.next()),
            volumes: BTreeMap::new(),
            flights: BTreeMap::new(),
            next_token: 0,
            next_value: rng.next() >> 16 << 12 | 1,
            outcome: Outcome::default(),
            doubt: BTreeMap::new(),
        };
        for (id, history) in volumes {
            life.activate(*id, history.clone()).unwrap_or_else(|e| panic!("volume {id}: {e}"));
        }
        life
    }

    fn activate(&mut self, id: u32, history: History) -> Result<(), udm_core::Error> {
        let md = self.pool.activate(id)?;
        let at = self.channel.attach(md.clone());
        self.volumes.insert(id, Volume { md, at, history });
        Ok(())
    }

    fn lead(&mut self) {
        if self.plan == Plan::Failing {
            let disk = if self.rng.one_in(3) { &self.pool.data } else { &self.pool.metadata };
            let op = if self.rng.one_in(5) { Op::Flush } else { Op::Write };
            disk.inject(Fault::new(Status::Io).on(op).after(self.rng.below(60)).times(1));
        } else if self.rng.one_in(3) {
            // Sometimes in the middle of a message, where nobody looks in between.
            self.pool.sim.cut_at_write(self.pool.sim.writes() + 1 + self.rng.below(150));
        }
        let steps = 80 + self.rng.below(120);
        for _ in 0..steps {
            if self.pool.sim.is_off() {
                return;
            }
            match self.rng.below(100) {
                0..50 => self.submit(),
                50..85 => self.pump(),
                85..94 if self.plan != Plan::Failing => self.look(),
                94..96 => self.hold_still(),
                _ if self.plan == Plan::Snapshots || self.rng.one_in(3) => self.message(),
                _ => self.pump(),
            }
        }
        if self.rng.one_in(2) {
            self.drain();
        }
    }

    /// Takes the power. What comes home now has failed, which changes nothing of what was known.
    fn end(mut self) -> Vec<Image> {
        let images = self.pool.sim.power_cut();
        while !self.flights.is_empty() {
            if self.channel.poll() == 0 && self.channel.completed().map(|c| self.flights.remove(&c.token)).is_none() {
                self.channel.wait(None, &mut Vec::new()).expect("simulated");
            }
        }
        drop(self.channel);
        images
    }

    fn known(&self) -> Known {
        let certain = self.volumes.iter().map(|(id, v)| (*id, (Existence::Certain, v.history.clone())));
        let doubtful = self.doubt.iter().map(|(id, history)| (*id, (Existence::Possible, history.clone())));
        certain.chain(doubtful).collect()
    }

    /// Looks at what a cut would leave now.
    fn look(&mut self) {
        let images = self.pool.sim.what_if();
        look(&self.spec, images, &self.known(), self.rng.next());
        self.outcome.points += 1;
    }

    /// Submits something to one of the volumes.
    fn submit(&mut self) {
        let ids: Vec<u32> = self.volumes.keys().copied().collect();
        if ids.is_empty() || self.flights.len() >= DEPTH {
            return self.pump();
        }
        let id = ids[self.rng.below(ids.len() as u64) as usize];
        let range = self.range();
        let overlaps = |f: &Flight| f.volume == id && f.range.start < range.end && range.start < f.range.end;
        if self.flights.values().any(overlaps) {
            return self.pump();
        }
        let (op, effect) = match self.rng.below(20) {
            0..8 => (Op::Write, Effect::Write(self.next_value)),
            8..11 => (Op::Write, Effect::Zero),
            11..13 => (Op::WriteZeroes, Effect::Zero),
            13..15 => (Op::Discard, Effect::MayZero),
            15..17 => (Op::Flush, Effect::Nothing),
            _ => (Op::Read, Effect::Nothing),
        };
        let range = if op == Op::Flush { 0..0 } else { range };
        self.next_value += range.end - range.start;
        let mut flags = OpFlags::NONE;
        if op.is_write() && op != Op::Discard && self.rng.one_in(6) {
            flags = flags.with(OpFlags::FUA);
        }
        if op == Op::WriteZeroes && self.rng.one_in(2) {
            flags = flags.with(OpFlags::NO_UNMAP);
        }
        self.start(id, op, flags, range, effect);
    }

    /// Some sectors of a volume: often pages, sometimes whole blocks, sometimes odd.
    fn range(&mut self) -> Range<u64> {
        let whole = BLOCK * BLOCKS;
        let (unit, longest) = match self.rng.below(6) {
            0..3 => (8, 4),
            3 => (BLOCK, 2),
            4 => (1, 20),
            _ => (8, 20),
        };
        let start = self.rng.below(whole / unit) * unit;
        start..whole.min(start + (1 + self.rng.below(longest)) * unit)
    }

    fn start(&mut self, id: u32, op: Op, flags: OpFlags, range: Range<u64>, effect: Effect) {
        let sectors = Sectors::new(range.end - range.start);
        let mut memory = vec![0; if op.has_payload() { sectors.as_len() } else { 0 }].into_boxed_slice();
        if let Effect::Write(first) = effect {
            fill(&mut memory, first);
        }
        let volume = self.volumes.get_mut(&id).expect("it is live");
        let operation = volume.history.submit(range.clone(), effect);
        self.next_token += 1;
        let token = self.next_token;
        let at = volume.at;
        let flight = self.flights.entry(token).or_insert(Flight { volume: id, op, flags, range, operation, memory });
        let sector = Sector::new(flight.range.start);
        let taken = if op.has_payload() {
            // SAFETY: a flight stays until its completion has been taken, and a box does not move.
            unsafe { self.channel.submit(at, op, flags, sector, &mut flight.memory, token) }
        } else {
            self.channel.submit_range(at, op, flags, sector, sectors, token)
        };
        assert!(taken, "a channel takes more than {DEPTH}");
    }

    /// Lets a little happen.
    fn pump(&mut self) {
        if self.channel.poll() == 0 && !self.flights.is_empty() {
            self.channel.wait(None, &mut Vec::new()).expect("simulated");
            self.channel.poll();
        }
        while let Some(done) = self.channel.completed() {
            self.completed(done.token, done.status);
        }
    }

    /// Suspends the pool while bios are out: what has been answered holds, and nothing is written before the resume.
    fn hold_still(&mut self) {
        self.suspend("a suspension");
        let writes = self.pool.sim.writes();
        (0..10).for_each(|_| self.pump());
        assert!(self.pool.sim.is_off() || self.pool.sim.writes() == writes, "something is written under a suspension");
        if self.plan != Plan::Failing && self.rng.one_in(2) {
            self.look();
        }
        self.resume("a resume");
    }

    fn suspend(&self, what: &str) {
        let done = self.pool.md.suspend(SuspendOptions::default(), &|| false);
        done.unwrap_or_else(|e| self.unless_expected(what, &e));
    }

    fn resume(&self, what: &str) {
        let done = self.pool.md.resume(SuspendOptions::default(), &|| false);
        done.unwrap_or_else(|e| self.unless_expected(what, &e));
    }

    /// Until nothing is out.
    fn drain(&mut self) {
        while !self.flights.is_empty() {
            self.pump();
        }
    }

    fn completed(&mut self, token: u64, status: Status) {
        let flight = self.flights.remove(&token).expect("it was out");
        if self.pool.sim.is_off() {
            // However it ended, it counts as in flight.
            return;
        }
        if !status.is_ok() {
            self.outcome.errors += 1;
            self.may_fail(&flight, status);
        }
        let history = &mut self.volumes.get_mut(&flight.volume).expect("it is live").history;
        match flight.op {
            Op::Flush if status.is_ok() => {
                history.flushed(&flight.operation);
                self.outcome.flushes += 1;
            }
            Op::Flush => {}
            Op::Read if status.is_ok() => {
                for (sector, bytes) in flight.range.clone().zip(flight.memory.chunks_exact(512)) {
                    let read = udm_sim::history::value(bytes).expect("not torn within a sector");
                    // A pool whose metadata fails goes back to its last commit and says so: as after a cut.
                    let fine = match self.plan {
                        Plan::Failing => history.may_survive(sector, read),
                        _ => history.may_read(sector, read),
                    };
                    let place = format!("volume {}, sector {sector}", flight.volume);
                    assert!(fine, "{place}: read {read:#x}, expected {}", history.describe(sector));
                }
            }
            Op::Read => {}
            _ => {
                history.done(&flight.operation, status.is_ok(), flight.flags.contains(OpFlags::FUA));
                self.outcome.writes += 1;
            }
        }
    }

    /// Whether an error is one that this plan brings about.
    fn may_fail(&self, flight: &Flight, status: Status) {
        let fine = match (self.plan, flight.op) {
            (_, Op::Discard) if self.spec.has("ignore_discard") => status == Status::NotSupported,
            (Plan::Failing, _) => true,
            (Plan::Short, Op::Write | Op::WriteZeroes) => status == Status::NoSpace,
            _ => false,
        };
        assert!(fine, "{:?} of {:?} failed with {status:?}", flight.op, flight.range);
    }

    /// Makes or deletes a volume.
    fn message(&mut self) {
        self.drain();
        if self.pool.sim.is_off() || !self.doubt.is_empty() {
            return;
        }
        self.outcome.messages += 1;
        let ids: Vec<u32> = self.volumes.keys().copied().collect();
        // Not where a write fails: that a volume lost changes is forgotten when nobody has it open any more, as in the
        // kernel.
        if self.plan != Plan::Failing && !ids.is_empty() && self.rng.one_in(4) {
            let id = ids[self.rng.below(ids.len() as u64) as usize];
            return self.reopen(id);
        }
        let free = (1..=VOLUMES).find(|id| !self.volumes.contains_key(id));
        let some = |rng: &mut Rng| ids[rng.below(ids.len() as u64) as usize];
        match free {
            Some(id) if ids.is_empty() || (self.plan != Plan::Snapshots && self.rng.one_in(2)) => {
                self.make(id, &format!("create_thin {id}"), History::zeroes(BLOCK * BLOCKS));
            }
            Some(id) => {
                let origin = some(&mut self.rng);
                let history = self.volumes[&origin].history.snapshot();
                self.make(id, &format!("create_snap {id} {origin}"), history);
            }
            None => {
                let id = some(&mut self.rng);
                self.delete(id);
            }
        }
    }

    fn make(&mut self, id: u32, message: &str, history: History) {
        let made = self.pool.message(message).and_then(|()| self.activate(id, history.clone()));
        if let Err(e) = made {
            self.unless_expected(message, &e);
            self.doubt.insert(id, history);
        }
    }

    /// Takes a volume down and makes it live again: what it owes a flush it still owes.
    fn reopen(&mut self, id: u32) {
        let Volume { md, at, history } = self.volumes.remove(&id).expect("it is live");
        self.channel.detach(at);
        let removed = self.pool.registry.remove(&md, false).map(drop);
        drop(md);
        if let Err(e) = removed.and_then(|()| self.activate(id, history.clone())) {
            self.unless_expected("opening a volume again", &e);
            self.doubt.insert(id, history);
        }
    }

    fn delete(&mut self, id: u32) {
        let Volume { md, at, history } = self.volumes.remove(&id).expect("it is live");
        self.channel.detach(at);
        let message = format!("delete {id}");
        let removed = self.pool.registry.remove(&md, false).map(drop);
        drop(md);
        let suspended = self.rng.one_in(3);
        if suspended {
            self.suspend(&message);
        }
        if let Err(e) = removed.and_then(|()| self.pool.message(&message)) {
            self.unless_expected(&message, &e);
            self.doubt.insert(id, history);
        }
        if suspended {
            self.resume(&message);
        }
    }

    fn unless_expected(&self, what: &str, error: &udm_core::Error) {
        assert!(self.pool.sim.is_off() || self.plan == Plan::Failing, "{what}: {error}");
    }
}
