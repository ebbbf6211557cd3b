//! One seed: devices that are used and changed at random, and lose their power in between.

use crate::stack::{BLOCK, CHUNK, COWS, DATA, MOST, MOST_DATA, SIZE, Stack, message, status, under_way};
use crate::{SEED, STEPS};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use udm_base::{Sector, Sectors};
use udm_core::MappedDevice;
use udm_io::{Attached, BlockingIo, Channel, Op, OpFlags, Status};
use udm_sim::history::{Effect, History, Operation, fill, value};
use udm_sim::{Image, Rng};

/// Bios that are out at a time, and thin volumes.
const DEPTH: usize = 24;
const VOLUMES: usize = 5;
/// Cuts in the life of one stack.
const LIVES: u64 = 3;
/// Rounds of waiting, of a millisecond of the world each, in which nothing comes home although nothing is suspended.
/// Writes may wait for space for a minute.
const ROUNDS: u64 = 200_000;

type Change = fn(&mut Life);

/// What is done to devices, by name: `UDM_SOAK_WITHOUT` leaves some away, so that faults that are known hide no others.
const CHANGES: &[(&str, Change)] = &[
    ("reload", Life::reload),
    ("grow-pool", Life::grow_pool),
    ("grow-thin", Life::grow_thin),
    ("grow-origin", Life::grow_origin),
    ("thin-snapshot", Life::make_thin),
    ("thin-delete", Life::delete_thin),
    ("snapshot", Life::take_snapshot),
    ("snapshot-remove", Life::drop_snapshot),
];

/// What was done.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Outcome {
    /// Seeds.
    pub(crate) lives: u64,
    pub(crate) steps: u64,
    /// Bios that were held against what was known.
    pub(crate) checked: u64,
    /// Devices suspended, loaded, grown, made and deleted.
    pub(crate) changes: u64,
    cuts: u64,
}

impl std::ops::AddAssign for Outcome {
    fn add_assign(&mut self, more: Self) {
        self.lives += more.lives;
        self.steps += more.steps;
        self.checked += more.checked;
        self.changes += more.changes;
        self.cuts += more.cuts;
    }
}

/// What a device is made of.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Kind {
    Plain,
    Thin { id: u32 },
    Origin,
    Snapshot { cow: usize },
}

/// What is known of a device that is used, and outlives a cut.
#[derive(Clone)]
struct Known {
    kind: Kind,
    size: u64,
    history: History,
}

struct Used {
    known: Known,
    md: Arc<MappedDevice>,
    at: Attached,
}

/// A bio that is out.
struct Flight {
    device: String,
    op: Op,
    flags: OpFlags,
    range: Range<u64>,
    operation: Operation,
    memory: Box<[u8]>,
}

struct Life {
    stack: Stack,
    channel: Channel,
    rng: Rng,
    pool: Arc<MappedDevice>,
    beneath: Arc<MappedDevice>,
    data: u64,
    used: BTreeMap<String, Used>,
    flights: BTreeMap<u64, Flight>,
    /// The device that is suspended.
    suspended: Option<Arc<MappedDevice>>,
    next_token: u64,
    next_value: u64,
    next_id: u32,
    /// What is not done.
    without: Vec<String>,
    outcome: Outcome,
}

/// Runs one seed.
pub(crate) fn run(seed: u64) -> Outcome {
    SEED.store(seed, Ordering::Relaxed);
    let mut rng = Rng::new(seed);
    let (mut images, mut data) = (None, DATA);
    let plain = |kind| Known { kind, size: SIZE, history: History::zeroes(MOST) };
    let mut known: BTreeMap<String, Known> = BTreeMap::new();
    known.insert("plain".into(), plain(Kind::Plain));
    known.insert("origin".into(), plain(Kind::Origin));
    let mut outcome = Outcome { lives: 1, ..Outcome::default() };
    for _ in 0..LIVES {
        let mut life = Life::begin(images.take(), data, &known, &mut rng);
        life.lead();
        outcome += life.outcome;
        data = life.data;
        known = life.used.iter().map(|(name, used)| (name.clone(), used.known.clone())).collect();
        let left = life.end();
        known = look(&left, data, &known, rng.next());
        outcome.cuts += 1;
        images = Some(left);
    }
    outcome
}

fn table(kind: &Kind, size: u64) -> String {
    match kind {
        // Two pieces that lie the other way round beneath.
        Kind::Plain => {
            let half = size / 2;
            format!("0 {half} linear plain 0\n{half} {half} linear plain {half}")
        }
        Kind::Thin { id } => format!("0 {size} thin {{pool}} {id}"),
        Kind::Origin => format!("0 {size} snapshot-origin {{beneath}}"),
        Kind::Snapshot { cow } => format!("0 {size} snapshot {{beneath}} cow{cow} P {CHUNK}"),
    }
}

fn pool_table(data: u64) -> String {
    format!("0 {} thin-pool meta data {BLOCK} 0", data * BLOCK)
}

/// Opens what a cut left, holds it against what was known, and returns that settled to what was read.
fn look(images: &[Image], data: u64, known: &BTreeMap<String, Known>, seed: u64) -> BTreeMap<String, Known> {
    let mut life = Life::begin(Some(images.to_vec()), data, known, &mut Rng::new(seed));
    let mut found = BTreeMap::new();
    for (name, used) in &life.used {
        let io = BlockingIo::new(&life.stack.domain, used.md.clone()).expect("a channel");
        let mut bytes = vec![0; used.known.size as usize * 512];
        io.read(Sector::ZERO, &mut bytes)
            .unwrap_or_else(|e| panic!("{name} cannot be read: {e:?}: {}", status(&used.md)));
        let mut known = used.known.clone();
        for (sector, bytes) in (0..).zip(bytes.chunks_exact(512)) {
            let read = value(bytes).unwrap_or_else(|| panic!("{name}, sector {sector}: torn within a sector"));
            let history = &mut known.history;
            let expected = history.describe(sector);
            assert!(
                history.may_survive(sector, read),
                "{name}, sector {sector}: after a cut {read:#x}, not {expected}"
            );
            history.settle(sector, read);
        }
        found.insert(name.clone(), known);
    }
    life.settle();
    found
}

impl Life {
    fn begin(images: Option<Vec<Image>>, data: u64, known: &BTreeMap<String, Known>, rng: &mut Rng) -> Self {
        let stack = Stack::new(images, rng.next(), false);
        let channel = stack.domain.channel().expect("a channel");
        let pool = stack.make("pool", &pool_table(data));
        let size = known.get("origin").map_or(SIZE, |origin| origin.size);
        let beneath = stack.make("beneath", &format!("0 {size} linear beneath 0"));
        let mut life = Self {
            stack,
            channel,
            rng: Rng::new(rng.next()),
            pool,
            beneath,
            data,
            used: BTreeMap::new(),
            flights: BTreeMap::new(),
            suspended: None,
            next_token: 0,
            next_value: rng.next() >> 16 << 12 | 1,
            next_id: known
                .values()
                .filter_map(|k| if let Kind::Thin { id } = k.kind { Some(id) } else { None })
                .max()
                .unwrap_or(0),
            without: std::env::var("UDM_SOAK_WITHOUT")
                .map_or_else(|_| Vec::new(), |list| list.split(',').map(str::to_owned).collect()),
            outcome: Outcome::default(),
        };
        // Snapshots first: what is written to their origin before they are there they do not have.
        for snapshots in [true, false] {
            for (name, known) in known.iter().filter(|(_, k)| matches!(k.kind, Kind::Snapshot { .. }) == snapshots) {
                life.make(name, known.clone());
            }
        }
        life
    }

    fn make(&mut self, name: &str, known: Known) {
        let md = self.stack.make(name, &table(&known.kind, known.size));
        let at = self.channel.attach(md.clone());
        self.used.insert(name.to_owned(), Used { known, md, at });
    }

    fn lead(&mut self) {
        let steps = 150 + self.rng.below(250);
        for _ in 0..steps {
            STEPS.fetch_add(1, Ordering::Relaxed);
            self.outcome.steps += 1;
            match self.rng.below(100) {
                0..55 => self.submit(),
                55..80 => self.pump(),
                80..90 => self.suspend_or_resume(),
                _ => self.change(),
            }
        }
        if self.rng.one_in(2) {
            self.drain();
        }
    }

    /// Lets all come home, and takes all down.
    fn settle(&mut self) {
        self.drain();
        let names: Vec<String> = self.used.keys().cloned().collect();
        names.iter().for_each(|name| drop(self.remove(name)));
        for md in [&self.beneath, &self.pool] {
            self.stack.registry.remove(md, false).unwrap_or_else(|e| panic!("{}: {e}", md.device_name()));
        }
    }

    /// Takes the power. What comes home now counts as in flight.
    fn end(mut self) -> Vec<Image> {
        let images = self.stack.sim.power_cut();
        let held = self.suspended.take().is_some_and(|md| !self.stack.resumes(&md));
        let mut rounds = 0;
        while !self.flights.is_empty() {
            if self.channel.poll() == 0 && self.channel.completed().map(|c| self.flights.remove(&c.token)).is_none() {
                self.channel.wait(Some(Duration::from_millis(1)), &mut Vec::new()).expect("simulated");
                rounds += 1;
                if held && rounds == ROUNDS {
                    // What a device holds that cannot be resumed any more nobody gets back: its memory stays.
                    std::mem::forget(std::mem::take(&mut self.flights));
                }
                assert!(rounds < ROUNDS || held, "HANG after a cut: {}{}", self.out(), self.states());
            }
        }
        images
    }

    fn name(&mut self, is: impl Fn(&Kind) -> bool) -> Option<String> {
        let names: Vec<&String> = self.used.iter().filter(|(_, u)| is(&u.known.kind)).map(|(name, _)| name).collect();
        names.get(self.rng.below(names.len() as u64) as usize).map(|name| (*name).clone())
    }

    fn submit(&mut self) {
        if self.flights.len() >= DEPTH {
            return self.pump();
        }
        let Some(name) = self.name(|_| true) else { return };
        let used = &self.used[&name];
        let (size, kind) = (used.known.size, used.known.kind.clone());
        let (unit, longest) = [(8, 4), (8, 4), (BLOCK, 2), (1, 20), (8, 20)][self.rng.below(5) as usize];
        let start = self.rng.below(size / unit) * unit;
        let mut range = start..size.min(start + (1 + self.rng.below(longest)) * unit);
        let overlaps = |f: &Flight| f.device == name && f.range.start < range.end && range.start < f.range.end;
        if self.flights.values().any(overlaps) {
            return self.pump();
        }
        let (op, effect) = match self.rng.below(20) {
            0..9 => (Op::Write, Effect::Write(self.next_value)),
            9..11 => (Op::WriteZeroes, Effect::Zero),
            11..13 if kind != Kind::Origin && !matches!(kind, Kind::Snapshot { .. }) => (Op::Discard, Effect::MayZero),
            13..15 => (Op::Flush, Effect::Nothing),
            _ => (Op::Read, Effect::Nothing),
        };
        if op == Op::Flush {
            range = 0..0;
        }
        self.next_value += range.end - range.start;
        let fua = op.is_write() && op != Op::Discard && self.rng.one_in(6);
        let flags = if fua { OpFlags::NONE.with(OpFlags::FUA) } else { OpFlags::NONE };
        self.start(name, op, flags, range, effect);
    }

    fn start(&mut self, device: String, op: Op, flags: OpFlags, range: Range<u64>, effect: Effect) {
        let sectors = Sectors::new(range.end - range.start);
        let mut memory = vec![0; if op.has_payload() { sectors.as_len() } else { 0 }].into_boxed_slice();
        if let Effect::Write(first) = effect {
            fill(&mut memory, first);
        }
        let used = self.used.get_mut(&device).expect("it is there");
        let operation = used.known.history.submit(range.clone(), effect);
        self.next_token += 1;
        let (at, token) = (used.at, self.next_token);
        let flight = self.flights.entry(token).or_insert(Flight { device, op, flags, range, operation, memory });
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
            let most = Duration::from_micros(1 + self.rng.below(1000));
            self.channel.wait(Some(most), &mut Vec::new()).expect("simulated");
            self.channel.poll();
        }
        self.take();
    }

    fn take(&mut self) {
        while let Some(done) = self.channel.completed() {
            let flight = self.flights.remove(&done.token).expect("it was out");
            self.completed(&flight, done.status);
        }
    }

    fn out(&self) -> String {
        self.flights.values().map(|f| format!("{:?} {:?} of {}, {:?}; ", f.op, f.range, f.device, f.flags)).collect()
    }

    /// What devices say of themselves.
    fn states(&self) -> String {
        let devices = self.stack.registry.list();
        let one = |md: &Arc<MappedDevice>| {
            let suspended = if md.info().suspended { ", suspended" } else { "" };
            format!("\n{}: {}{suspended}{}", md.device_name(), status(md), under_way(md))
        };
        let devices: String = devices.iter().map(one).collect();
        let channels = self.stack.domain.inspect();
        channels.iter().fold(devices, |text, channel| format!("{text}\n{channel:?}"))
    }

    /// Until nothing is out, with nothing suspended.
    fn drain(&mut self) {
        self.resume();
        self.until_home(|_| true);
    }

    /// Until such bios are home.
    fn until_home(&mut self, such: impl Fn(&Flight) -> bool) {
        let mut rounds = 0;
        while self.flights.values().any(&such) {
            let before = self.flights.len();
            self.pump();
            rounds = if self.flights.len() < before { 0 } else { rounds + 1 };
            STEPS.fetch_add(1, Ordering::Relaxed);
            assert!(rounds < ROUNDS, "HANG: {}{}", self.out(), self.states());
        }
    }

    fn completed(&mut self, flight: &Flight, status: Status) {
        let Flight { device, op, range, .. } = flight;
        let used = self.used.get_mut(device).expect("it is there");
        assert!(status.is_ok(), "{op:?} {range:?} of {device}: {status:?}: {}", crate::stack::status(&used.md));
        self.outcome.checked += 1;
        let history = &mut used.known.history;
        match op {
            Op::Flush => history.flushed(&flight.operation),
            Op::Read => {
                for (sector, bytes) in range.clone().zip(flight.memory.chunks_exact(512)) {
                    let read = value(bytes).unwrap_or_else(|| panic!("{device}, sector {sector}: torn"));
                    let expected = history.describe(sector);
                    assert!(
                        history.may_read(sector, read),
                        "{device}, sector {sector}: read {read:#x}, not {expected}"
                    );
                }
            }
            _ => history.done(&flight.operation, true, flight.flags.contains(OpFlags::FUA)),
        }
    }

    /// Any device: those that others stand on as well.
    fn any(&mut self) -> Arc<MappedDevice> {
        match self.rng.below(4) {
            0 | 1 => self.pool.clone(),
            2 if self.rng.one_in(2) => self.beneath.clone(),
            _ => self.name(|_| true).map_or_else(|| self.pool.clone(), |name| self.used[&name].md.clone()),
        }
    }

    fn suspend_or_resume(&mut self) {
        self.outcome.changes += 1;
        if self.suspended.is_some() || self.without.iter().any(|name| name == "suspend") {
            return self.resume();
        }
        let md = self.any();
        let noflush = self.rng.one_in(3) && !self.without.iter().any(|name| name == "suspend-noflush");
        self.stack.suspend(&md, noflush);
        self.suspended = Some(md);
    }

    fn resume(&mut self) {
        if let Some(md) = self.suspended.take() {
            self.stack.resume(&md);
        }
    }

    /// Makes, deletes, reloads or grows something. One that is suspended is resumed first: commands would wait for it.
    fn change(&mut self) {
        let wanted: Vec<_> =
            CHANGES.iter().filter(|(name, _)| !self.without.iter().any(|other| other == name)).collect();
        let Some((_, change)) = wanted.get(self.rng.below(wanted.len() as u64) as usize) else { return };
        self.resume();
        self.outcome.changes += 1;
        change(self);
    }

    fn reload(&mut self) {
        let md = self.any();
        let name = md.device_name();
        let text = match name.as_str() {
            "pool" => pool_table(self.data),
            "beneath" => format!("0 {} linear beneath 0", self.used["origin"].known.size),
            name => table(&self.used[name].known.kind, self.used[name].known.size),
        };
        self.stack.load(&md, &text);
        self.stack.resume(&md);
    }

    fn grow_pool(&mut self) {
        self.data = MOST_DATA.min(self.data + 1 + self.rng.below(4));
        self.stack.load(&self.pool, &pool_table(self.data));
        self.stack.resume(&self.pool);
    }

    fn grow_thin(&mut self) {
        let Some(name) = self.name(|kind| matches!(kind, Kind::Thin { .. })) else { return };
        let used = self.used.get_mut(&name).expect("it is there");
        used.known.size = MOST.min(used.known.size + BLOCK);
        self.stack.load(&used.md, &table(&used.known.kind, used.known.size));
        self.stack.resume(&used.md);
    }

    /// What stands above is suspended before what it stands on changes, as lvm2 does it.
    fn grow_origin(&mut self) {
        let names: Vec<String> = self
            .used
            .iter()
            .filter(|(_, u)| matches!(u.known.kind, Kind::Snapshot { .. }))
            .map(|(n, _)| n.clone())
            .collect();
        let origin = self.used["origin"].md.clone();
        let size = MOST.min(self.used["origin"].known.size + BLOCK);
        self.stack.suspend(&origin, false);
        names.iter().for_each(|name| self.stack.suspend(&self.used[name].md, false));
        self.channel.poll();
        self.take();
        self.stack.load(&self.beneath, &format!("0 {size} linear beneath 0"));
        self.stack.resume(&self.beneath);
        let shown = self.used["origin"].known.history.clone();
        for name in &names {
            let used = self.used.get_mut(name).expect("it is there");
            if self.rng.one_in(2) && used.known.size < size {
                used.known.history.show(used.known.size..size, &shown);
                used.known.size = size;
                self.stack.load(&used.md, &table(&used.known.kind, size));
            }
            self.stack.resume(&used.md);
        }
        let used = self.used.get_mut("origin").expect("it is there");
        used.known.size = size;
        self.stack.load(&used.md, &table(&Kind::Origin, size));
        self.stack.resume(&used.md);
    }

    fn make_thin(&mut self) {
        let thins: Vec<String> = self
            .used
            .iter()
            .filter(|(_, u)| matches!(u.known.kind, Kind::Thin { .. }))
            .map(|(n, _)| n.clone())
            .collect();
        if thins.len() >= VOLUMES {
            return;
        }
        self.next_id += 1;
        let id = self.next_id;
        let origin = thins.get(self.rng.below(1 + thins.len() as u64) as usize);
        let known = match origin {
            None => {
                message(&self.pool, &format!("create_thin {id}"));
                Known { kind: Kind::Thin { id }, size: SIZE, history: History::zeroes(MOST) }
            }
            Some(name) => {
                let Known { kind: Kind::Thin { id: of }, size, .. } = self.used[name].known else { return };
                let history = self.snapshot_of(name);
                message(&self.pool, &format!("create_snap {id} {of}"));
                Known { kind: Kind::Thin { id }, size, history }
            }
        };
        self.make(&format!("thin{id}"), known);
    }

    /// What a snapshot that is asked for now may have: what is in flight, or what was there before.
    fn snapshot_of(&self, name: &str) -> History {
        let mut history = self.used[name].known.history.snapshot();
        let flying = self.flights.values().filter(|flight| flight.device == name && flight.op.is_write());
        flying.for_each(|flight| history.done(&flight.operation, false, false));
        history
    }

    fn remove(&mut self, name: &str) -> Known {
        self.until_home(|flight| flight.device == name);
        let Used { known, md, at } = self.used.remove(name).expect("it is there");
        // SAFETY: none of its bios is out.
        unsafe { self.channel.detach_idle(at) };
        self.stack.registry.remove(&md, false).unwrap_or_else(|e| panic!("{name}: {e}"));
        known
    }

    fn delete_thin(&mut self) {
        let Some(name) = self.name(|kind| matches!(kind, Kind::Thin { .. })) else { return };
        let known = self.remove(&name);
        if let Kind::Thin { id } = known.kind {
            message(&self.pool, &format!("delete {id}"));
        }
    }

    fn take_snapshot(&mut self) {
        let free = (0..COWS).find(|cow| !self.used.contains_key(&format!("snap{cow}")));
        let Some(cow) = free else { return };
        self.clear(cow);
        let origin = self.used["origin"].md.clone();
        self.stack.suspend(&origin, false);
        self.channel.poll();
        self.take();
        self.flush_origin();
        let history = self.snapshot_of("origin");
        let size = self.used["origin"].known.size;
        self.make(&format!("snap{cow}"), Known { kind: Kind::Snapshot { cow }, size, history });
        self.stack.resume(&origin);
    }

    /// What the origin's own device could lose in a cut, a snapshot of it could lose as well, whatever is flushed
    /// later.
    fn flush_origin(&mut self) {
        let io = BlockingIo::new(&self.stack.domain, self.beneath.clone()).expect("a channel");
        io.flush().expect("nothing fails here");
        let history = &mut self.used.get_mut("origin").expect("it is there").known.history;
        let flush = history.submit(0..0, Effect::Nothing);
        history.flushed(&flush);
    }

    /// Makes a COW device one for a new snapshot.
    fn clear(&mut self, cow: usize) {
        let md = self.stack.make("clear", &format!("0 {CHUNK} linear cow{cow} 0"));
        {
            let io = BlockingIo::new(&self.stack.domain, md.clone()).expect("a channel");
            let cleared = io.write(Sector::ZERO, &[0; 4096], OpFlags::NONE).and_then(|()| io.flush());
            cleared.expect("nothing fails here");
        }
        self.stack.registry.remove(&md, false).unwrap_or_else(|e| panic!("clear: {e}"));
    }

    fn drop_snapshot(&mut self) {
        if let Some(name) = self.name(|kind| matches!(kind, Kind::Snapshot { .. })) {
            self.remove(&name);
        }
    }
}
