//! What goes on between two power cuts.

use crate::run::{Outcome, Plan, kind};
use crate::stack::{All, Kind, Known, MOST, Setup, Stack, is_merged, load, look, room_for, status, untouched};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use udm_base::{Sector, Sectors};
use udm_core::{Error, MappedDevice, SuspendOptions};
use udm_io::{Attached, BlockingIo, Channel, Op, OpFlags, Status};
use udm_sim::history::{Effect, History, Operation, fill};
use udm_sim::{Fault, Image, Rng};

/// As many bios as are out at a time.
const DEPTH: usize = 8;

/// A device that is used.
struct Used {
    md: Arc<MappedDevice>,
    at: Attached,
    history: History,
}

/// A snapshot.
struct Snap {
    used: Used,
    kind: Kind,
}

/// A bio that is out.
struct Flight {
    /// `None`: the one above the origin.
    cow: Option<usize>,
    op: Op,
    flags: OpFlags,
    range: Range<u64>,
    operation: Operation,
    memory: Box<[u8]>,
}

pub(crate) struct Life {
    plan: Plan,
    pub(crate) setup: Setup,
    stack: Stack,
    channel: Channel,
    rng: Rng,
    top: Used,
    merging: Option<(usize, Kind)>,
    snaps: BTreeMap<usize, Snap>,
    flights: BTreeMap<u64, Flight>,
    next_token: u64,
    next_value: u64,
    next_name: u64,
    outcome: Outcome,
}

fn suspend(md: &Arc<MappedDevice>) -> Result<(), Error> {
    md.suspend(SuspendOptions::default(), &|| false).map(drop)
}

fn resume(md: &Arc<MappedDevice>) -> Result<(), Error> {
    md.resume(SuspendOptions::default(), &|| false).map(drop)
}

impl Life {
    pub(crate) fn begin(plan: Plan, setup: &Setup, images: Vec<Image>, known: &All, rng: &mut Rng) -> Self {
        let stack = Stack::open(setup, images, rng.next(), false).unwrap_or_else(|e| panic!("what is beneath: {e}"));
        let channel = stack.domain.channel().expect("a channel");
        let mut snaps = BTreeMap::new();
        for (cow, it) in &known.snapshots {
            let made = stack.device(&format!("snap{cow}"), it.history.len(), &stack.snapshot(*cow, &it.kind));
            let md = made.unwrap_or_else(|e| panic!("snapshot {cow}: {e}"));
            let used = Used { at: channel.attach(md.clone()), md, history: it.history.clone() };
            snaps.insert(*cow, Snap { used, kind: it.kind });
        }
        let md = stack.device("top", known.top.len(), &stack.top(known.merging.as_ref()));
        let md = md.unwrap_or_else(|e| panic!("the origin: {e}"));
        let top = Used { at: channel.attach(md.clone()), md, history: known.top.clone() };
        let mut life = Self {
            plan,
            setup: setup.clone(),
            stack,
            channel,
            rng: Rng::new(rng.next()),
            top,
            merging: known.merging,
            snaps,
            flights: BTreeMap::new(),
            next_token: 0,
            next_value: rng.next() >> 16 << 12 | 1,
            next_name: 0,
            outcome: Outcome::default(),
        };
        let least = 1 + life.rng.below(3) as usize;
        while life.snaps.len() < least && life.take() {}
        life
    }

    pub(crate) fn lead(&mut self) {
        if self.plan == Plan::Failing {
            let cows: Vec<usize> = self.snaps.keys().map(|cow| 1 + cow).collect();
            let disk = cows.get(self.rng.below(1 + cows.len() as u64) as usize).copied().unwrap_or(0);
            let op = [Op::Write, Op::Write, Op::Read, Op::Flush][self.rng.below(4) as usize];
            self.stack.disks[disk].inject(Fault::new(Status::Io).on(op).after(self.rng.below(16)).times(1));
        } else if self.rng.one_in(3) {
            // Sometimes in the middle of a change of tables, where nobody looks in between.
            self.stack.sim.cut_at_write(self.stack.sim.writes() + 1 + self.rng.below(200));
        }
        let change = match self.plan {
            Plan::Handover | Plan::Merging | Plan::Growing => 8,
            Plan::Failing => 4,
            _ => 1,
        };
        for _ in 0..80 + self.rng.below(100) {
            if self.stack.sim.is_off() {
                return;
            }
            match self.rng.below(100) {
                0..50 => self.submit(),
                50..80 => self.pump(),
                80..92 => self.look(),
                n if n < 92 + change => self.control(),
                _ => self.pump(),
            }
        }
        if self.rng.one_in(2) {
            self.drain();
        }
    }

    /// Takes the power. What comes home now has failed, which changes nothing of what was known.
    pub(crate) fn end(mut self) -> (Vec<Image>, Outcome) {
        if !self.stack.sim.is_off() {
            let spoilt = |snap: &&Snap| matches!(status(&snap.used.md).as_str(), "Invalid" | "Overflow");
            self.outcome.invalid += self.snaps.values().filter(spoilt).count() as u64;
        }
        let images = self.stack.sim.power_cut();
        self.drain();
        (images, self.outcome)
    }

    /// What is known of all.
    pub(crate) fn known(&self) -> All {
        let off = self.stack.sim.is_off();
        let of = |snap: &Snap| {
            // What failed after the cut says nothing of what was before it.
            let may_be_invalid = if off { self.plan.spoils() } else { status(&snap.used.md) == "Invalid" };
            Known { kind: snap.kind, history: snap.used.history.clone(), may_be_invalid }
        };
        All {
            top: self.top.history.clone(),
            merging: self.merging,
            snapshots: self.snaps.iter().filter(|(_, s)| s.kind.persists()).map(|(cow, s)| (*cow, of(s))).collect(),
        }
    }

    /// Looks at what a cut would leave now.
    fn look(&mut self) {
        let images = self.stack.sim.what_if();
        look(&self.setup, images, &self.known(), self.rng.next());
        self.outcome.points += 1;
        self.outcome.half_merged += u64::from(self.merging.is_some());
    }

    fn used(&mut self, cow: Option<usize>) -> &mut Used {
        match cow {
            None => &mut self.top,
            Some(cow) => &mut self.snaps.get_mut(&cow).expect("it is there").used,
        }
    }

    /// Submits something to the origin or a snapshot.
    fn submit(&mut self) {
        let cows: Vec<usize> = self.snaps.keys().copied().collect();
        let pick = self.rng.below(2 * cows.len() as u64 + 2) as usize / 2;
        let cow = cows.get(pick).copied();
        let size = self.used(cow).history.len();
        let range = self.range(size);
        let overlaps = |f: &Flight| f.cow == cow && f.range.start < range.end && range.start < f.range.end;
        if self.flights.len() >= DEPTH || self.flights.values().any(overlaps) {
            return self.pump();
        }
        let discards = match cow {
            None => self.merging.is_some_and(|(_, kind)| kind.discards),
            Some(cow) => self.snaps[&cow].kind.discards,
        };
        let (op, effect) = match self.rng.below(20) {
            0..12 => (Op::Write, Effect::Write(self.next_value)),
            12..14 => (Op::Flush, Effect::Nothing),
            // What is merged discards nothing any more.
            14 if discards && cow.is_none() => (Op::Discard, Effect::Nothing),
            14 if discards => (Op::Discard, Effect::MayZero),
            _ => (Op::Read, Effect::Nothing),
        };
        let range = if op == Op::Flush { 0..0 } else { range };
        self.next_value += range.end - range.start;
        let fua = op == Op::Write && self.rng.one_in(6);
        self.start(cow, op, if fua { OpFlags::FUA } else { OpFlags::NONE }, range, effect);
    }

    /// Some sectors: often pages, sometimes many chunks, sometimes odd.
    fn range(&mut self, size: u64) -> Range<u64> {
        let (unit, longest) = match self.rng.below(6) {
            0..3 => (8, 3),
            3 => (32, 2),
            4 => (1, 20),
            _ => (8, 10),
        };
        let start = self.rng.below(size.div_ceil(unit)) * unit;
        start..size.min(start + (1 + self.rng.below(longest)) * unit)
    }

    fn start(&mut self, cow: Option<usize>, op: Op, flags: OpFlags, range: Range<u64>, effect: Effect) {
        let sectors = Sectors::new(range.end - range.start);
        let mut memory = vec![0; if op.has_payload() { sectors.as_len() } else { 0 }].into_boxed_slice();
        if let Effect::Write(first) = effect {
            fill(&mut memory, first);
        }
        let used = self.used(cow);
        let operation = used.history.submit(range.clone(), effect);
        let at = used.at;
        self.next_token += 1;
        let token = self.next_token;
        let flight = self.flights.entry(token).or_insert(Flight { cow, op, flags, range, operation, memory });
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

    /// Until nothing is out.
    fn drain(&mut self) {
        while !self.flights.is_empty() {
            self.pump();
        }
    }

    fn completed(&mut self, token: u64, ended: Status) {
        let flight = self.flights.remove(&token).expect("it was out");
        if self.stack.sim.is_off() {
            // However it ended, it counts as in flight.
            return;
        }
        if !ended.is_ok() {
            self.outcome.errors += 1;
            self.may_fail(&flight, ended);
        }
        let history = &mut self.used(flight.cow).history;
        match flight.op {
            Op::Flush if ended.is_ok() => {
                history.flushed(&flight.operation);
                self.outcome.flushes += 1;
            }
            Op::Read if ended.is_ok() => {
                for (sector, bytes) in flight.range.clone().zip(flight.memory.chunks_exact(512)) {
                    let read = udm_sim::history::value(bytes).expect("not torn within a sector");
                    let what = format!("{:?}, sector {sector}", flight.cow);
                    let may = history.may_read(sector, read);
                    assert!(may, "{what}: read {read:#x}, expected {}", history.describe(sector));
                }
                self.outcome.reads += 1;
            }
            Op::Flush | Op::Read => {}
            _ => {
                history.done(&flight.operation, ended.is_ok(), flight.flags.contains(OpFlags::FUA));
                self.outcome.writes += 1;
            }
        }
    }

    /// Whether an error is one that this plan brings about: the origin never suffers from its snapshots.
    fn may_fail(&self, flight: &Flight, ended: Status) {
        let fine = match (self.plan, flight.cow) {
            (Plan::Failing, _) => true,
            (Plan::Full, Some(cow)) => {
                let status = status(&self.snaps[&cow].used.md);
                status == "Invalid" || (status == "Overflow" && flight.op != Op::Read)
            }
            _ => false,
        };
        assert!(fine && ended == Status::Io, "{:?} of {:?} failed with {ended:?}", flight.op, flight.range);
    }

    /// Changes some table.
    fn control(&mut self) {
        let cows: Vec<usize> = self.snaps.keys().copied().collect();
        let some = (!cows.is_empty()).then(|| cows[self.rng.below(cows.len().max(1) as u64) as usize]);
        self.outcome.controls += 1;
        if self.plan == Plan::Growing && self.rng.one_in(2) {
            return self.grow(some);
        }
        if self.plan == Plan::Merging || (self.plan != Plan::Thin && self.rng.one_in(4)) {
            return self.merge(some);
        }
        match (self.rng.below(8), some) {
            (0..2, _) | (_, None) => drop(self.take()),
            (2, Some(cow)) => self.drop_snapshot(cow),
            (3, Some(cow)) => self.rename(cow),
            (4, Some(cow)) if self.snaps[&cow].kind.persists() && self.merging.is_none() => self.reopen(cow),
            (5, _) if self.merging.is_none() => {
                let top = self.top.md.clone();
                let table = format!("0 {} {}", self.top.history.len(), self.stack.top(self.merging.as_ref()));
                let done = suspend(&top).and_then(|()| load(&top, &table));
                self.expect("the origin again", done);
            }
            (_, Some(cow)) => {
                // From one table to the next of the same device, with bios on their way.
                let snap = self.snaps.get_mut(&cow).expect("it is there");
                if snap.kind.persists() && snap.kind.store == "P" {
                    snap.kind.store = "PO";
                }
                let (md, kind) = (snap.used.md.clone(), snap.kind);
                let table = format!("0 {} {}", snap.used.history.len(), self.stack.snapshot(cow, &kind));
                self.expect("the same snapshot again", suspend(&md).and_then(|()| load(&md, &table)));
            }
        }
    }

    /// What went wrong did so because the power is gone, or this plan's operation failed.
    fn expect<T>(&self, what: &str, done: Result<T, Error>) -> Option<T> {
        match done {
            Ok(done) => Some(done),
            Err(e) => {
                assert!(self.stack.sim.is_off() || self.plan == Plan::Failing, "{what}: {e}");
                None
            }
        }
    }

    fn name(&mut self) -> String {
        self.next_name += 1;
        format!("new{}", self.next_name)
    }

    /// Takes a snapshot of the origin as it is. False when there can be none.
    fn take(&mut self) -> bool {
        let merging = self.merging.map(|(cow, _)| cow);
        let free = (0..self.setup.cows.len()).find(|cow| !self.snaps.contains_key(cow) && merging != Some(*cow));
        let Some(cow) = free.filter(|_| merging.is_none()) else { return false };
        // What is still out would be in it or not, and nobody here would know; and what the origin's disk may still
        // lose, the snapshot may lose, for its own flushes go to its own device.
        self.drain();
        let size = self.setup.cows[cow];
        if !self.flush() || self.stack.clear(cow, size, &mut self.rng).is_err() || self.stack.sim.is_off() {
            return false;
        }
        let kind = kind(self.plan, size, &mut self.rng);
        let (name, table) = (self.name(), self.stack.snapshot(cow, &kind));
        let made = self.stack.device(&name, self.top.history.len(), &table);
        let Some(md) = self.expect("a new snapshot", made) else { return false };
        if self.stack.sim.is_off() {
            // Nobody was told that it is there.
            return false;
        }
        let history = self.top.history.snapshot();
        self.snaps.insert(cow, Snap { used: Used { at: self.channel.attach(md.clone()), md, history }, kind });
        true
    }

    /// Makes durable what the origin has, while the power is there.
    fn flush(&mut self) -> bool {
        let flush = self.top.history.submit(0..0, Effect::Nothing);
        let done = BlockingIo::new(&self.stack.domain, self.top.md.clone()).expect("a channel").flush();
        let done = done.is_ok() && !self.stack.sim.is_off();
        if done {
            self.top.history.flushed(&flush);
        }
        done
    }

    /// Has something grow: a COW device, the origin, a snapshot.
    fn grow(&mut self, some: Option<usize>) {
        match (self.rng.below(4), some) {
            (0, _) => {
                let cow = self.rng.below(self.setup.cows.len() as u64) as usize;
                let size = (self.setup.cows[cow] + 1 + self.rng.below(200)).min(room_for(MOST));
                self.grow_cow(cow, size);
            }
            (1, _) | (_, None) => self.grow_origin(),
            (_, Some(cow)) if self.merging.is_none() => self.grow_snapshot(cow),
            _ => {}
        }
    }

    fn grow_cow(&mut self, cow: usize, size: u64) {
        // What counts is what a table says, whether anybody has heard of it or not.
        self.setup.cows[cow] = self.setup.cows[cow].max(size);
        let done = self.stack.grow(&format!("c{cow}"), self.setup.cows[cow]);
        self.expect("a larger COW device", done);
    }

    /// The origin, as far as COW devices have room for that; what shows it, unless something is merged into it.
    fn grow_origin(&mut self) {
        let step = if self.rng.one_in(4) { 1000 } else { 70 };
        self.setup.size = (self.setup.size + 1 + self.rng.below(step)).min(MOST);
        let size = self.setup.size;
        (0..self.setup.cows.len()).for_each(|cow| self.grow_cow(cow, room_for(size)));
        let done = self.stack.grow("o", size);
        if self.expect("a larger origin", done).is_none() || self.merging.is_some() || self.stack.sim.is_off() {
            return;
        }
        let top = self.top.md.clone();
        let done = suspend(&top).and_then(|()| load(&top, &format!("0 {size} {}", self.stack.top(None))));
        if self.expect("a longer table of the origin", done).is_some() && !self.stack.sim.is_off() {
            self.top.history.grow(&untouched(size));
        }
    }

    /// A snapshot, to the end of what shows the origin. What comes by there meanwhile is part of it or not; so nothing
    /// does. Elsewhere everything goes on.
    fn grow_snapshot(&mut self, cow: usize) {
        let (old, new) = (self.snaps[&cow].used.history.len(), self.top.history.len());
        let comes_by = |f: &Flight| f.cow.is_none() && f.op == Op::Write && f.range.end > old;
        while self.flights.values().any(comes_by) {
            self.pump();
        }
        if !self.flush() {
            return;
        }
        let Snap { used, kind } = &self.snaps[&cow];
        let (md, table) = (used.md.clone(), format!("0 {new} {}", self.stack.snapshot(cow, kind)));
        let done = suspend(&md).and_then(|()| load(&md, &table));
        if self.expect("a longer snapshot", done).is_some() && !self.stack.sim.is_off() {
            let origin = self.top.history.clone();
            self.used(Some(cow)).history.grow(&origin);
            self.outcome.grown += u64::from(new > old);
        }
    }

    /// Lets go of a device. Nothing of it may be out.
    fn remove(&mut self, used: Used) -> (History, bool) {
        self.channel.detach(used.at);
        let removed = self.stack.registry.remove(&used.md, false).map(drop);
        (used.history, self.expect("to remove a device", removed).is_some())
    }

    fn drop_snapshot(&mut self, cow: usize) {
        self.drain();
        if self.stack.sim.is_off() {
            return;
        }
        let snap = self.snaps.remove(&cow).expect("it is there");
        self.remove(snap.used);
    }

    /// Another device takes a snapshot over, as when it is renamed.
    fn rename(&mut self, cow: usize) {
        self.drain();
        if self.stack.sim.is_off() {
            return;
        }
        let (name, snap) = (self.name(), &self.snaps[&cow]);
        let (source, kind) = (snap.used.md.clone(), snap.kind);
        let heir = self.stack.registry.create(&name, "", None).expect("a new name");
        let table = format!("0 {} {}", snap.used.history.len(), self.stack.snapshot(cow, &kind));
        let done = suspend(&source).and_then(|()| load(&heir, &table));
        let Some(()) = self.expect("an heir", done) else {
            // It comes back, or the power is gone.
            self.stack.registry.remove(&heir, false).expect("it is not open");
            self.expect("the source again", resume(&source));
            return;
        };
        let at = self.channel.attach(heir.clone());
        let used = &mut self.snaps.get_mut(&cow).expect("it is there").used;
        let history = used.history.clone();
        let old = std::mem::replace(used, Used { md: heir, at, history });
        drop(source);
        self.remove(old);
    }

    /// Takes a snapshot down and makes it live again, while nobody writes, not even a merge.
    fn reopen(&mut self, cow: usize) {
        self.drain();
        if self.stack.sim.is_off() {
            return;
        }
        let Snap { used, kind } = self.snaps.remove(&cow).expect("it is there");
        let (history, gone) = self.remove(used);
        let (name, table) = (self.name(), self.stack.snapshot(cow, &kind));
        let made = self.stack.device(&name, history.len(), &table);
        if let Some(md) = self.expect("the same again", made).filter(|_| gone) {
            let used = Used { at: self.channel.attach(md.clone()), md, history };
            self.snaps.insert(cow, Snap { used, kind });
        }
    }

    /// Begins a merge, stops one for a moment, or ends one.
    fn merge(&mut self, some: Option<usize>) {
        let top = self.top.md.clone();
        match self.merging {
            None => {
                let fit = |snap: &Snap| snap.kind.persists() && status(&snap.used.md) != "Invalid";
                match some.filter(|cow| fit(&self.snaps[cow])) {
                    Some(cow) => self.begin_merge(cow),
                    None => drop(self.take()),
                }
            }
            Some(_) if is_merged(&status(&top)) => {
                let table = format!("0 {} {}", self.top.history.len(), self.stack.top(None));
                if self.expect("to end a merge", suspend(&top).and_then(|()| load(&top, &table))).is_some()
                    && !self.stack.sim.is_off()
                {
                    self.merging = None;
                    self.outcome.merges += 1;
                }
            }
            Some(_) => {
                self.expect("to stop a merge", suspend(&top));
                if self.rng.one_in(2) && !self.stack.sim.is_off() {
                    // Now it has stopped.
                    self.look();
                }
                self.expect("to go on with it", resume(&top));
            }
        }
    }

    fn begin_merge(&mut self, cow: usize) {
        self.drain();
        // What was still out may have been too much for it.
        let size = self.top.history.len();
        let grows = self.snaps[&cow].used.history.len() < size;
        if (grows && !self.flush()) || self.stack.sim.is_off() || status(&self.snaps[&cow].used.md) == "Invalid" {
            return;
        }
        let Snap { used, kind } = self.snaps.remove(&cow).expect("it is there");
        let (top, source) = (self.top.md.clone(), used.md.clone());
        // From here on the origin may have more and more of the snapshot, and shows it as a whole.
        let table = format!("0 {} {}", size, self.stack.top(Some(&(cow, kind))));
        self.merging = Some((cow, kind));
        let origin = std::mem::replace(&mut self.top.history, used.history.clone());
        // If it is shorter, it grows to what it is merged into.
        self.top.history.grow(&origin);
        let done = suspend(&source).and_then(|()| suspend(&top)).and_then(|()| load(&top, &table));
        self.expect("to begin a merge", done);
        drop(source);
        self.remove(used);
    }
}
