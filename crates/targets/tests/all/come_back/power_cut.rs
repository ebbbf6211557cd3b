//! What a cut of `power-cut` leaves, against what a disk promises ([`History`]), in simulation.

use crate::rig::*;
use std::sync::Arc;
use udm_base::{Sector, Sectors};
use udm_core::*;
use udm_io::*;
use udm_sim::history::{self, Effect, History, Operation};
use udm_sim::{Image, Rng, Sim, SimDevice, SimOptions};

const SIZE: u64 = 64;

struct World {
    rig: Rig,
    disk: Arc<SimDevice>,
    md: Arc<MappedDevice>,
    table: String,
}

/// An operation that has been sent.
struct Sent {
    token: u64,
    op: Op,
    durable: bool,
    operation: Operation,
    range: std::ops::Range<u64>,
}

/// One life, from a load of the table to a cut.
struct Life<'w> {
    world: &'w World,
    client: Client,
    history: History,
    sent: Vec<Sent>,
    next: u64,
}

impl World {
    fn new(seed: u64, features: &str) -> Self {
        let sim = Sim::new(seed);
        let rig = Rig::with(udm_targets::TARGETS, sim.domain());
        let mut options = SimOptions::new(Sectors::new(SIZE));
        options.limits.fua = seed.is_multiple_of(2);
        options.limits.write_cache = !seed.is_multiple_of(3);
        let disk = Arc::new(SimDevice::new(&sim, options));
        rig.add("/disk", disk.clone());
        let table = format!("0 {SIZE} power-cut /disk 0{features}");
        let md = rig.device("x", &table);
        Self { rig, disk, md, table }
    }

    fn content(&self) -> Vec<u64> {
        values(&self.disk.content())
    }

    fn status(&self) -> String {
        let table = self.md.table(TableSlot::Active).unwrap();
        table.lines(StatusKind::Info { noflush: false })[0].params.clone()
    }
}

fn values(image: &Image) -> Vec<u64> {
    let mut bytes = vec![0; SIZE as usize * 512];
    image.read(Sector::ZERO, &mut bytes);
    bytes.chunks(512).map(|sector| history::value(sector).expect("a sector is whole")).collect()
}

impl Life<'_> {
    fn send(&mut self, op: Op, flags: OpFlags, range: std::ops::Range<u64>) {
        let (sector, count) = (range.start, range.end - range.start);
        let effect = match op {
            Op::Write => Effect::Write(self.next),
            Op::WriteZeroes => Effect::Zero,
            Op::Discard => Effect::MayZero,
            _ => Effect::Nothing,
        };
        let operation = self.history.submit(if op == Op::Flush { 0..0 } else { range.clone() }, effect);
        let token = match op {
            Op::Write => {
                let mut data = vec![0; count as usize * 512];
                history::fill(&mut data, self.next);
                self.next += count;
                self.client.write(sector, data, flags)
            }
            Op::Read => self.client.read(sector, count),
            Op::Flush => self.client.range(op, flags, 0, 0),
            _ => self.client.range(op, flags, sector, count),
        };
        self.sent.push(Sent { token, op, durable: flags.contains(OpFlags::FUA), operation, range });
    }

    /// An operation of chance, on sectors that no other is on.
    fn step(&mut self, rng: &mut Rng) {
        let start = rng.below(SIZE);
        let range = start..(start + 1 + rng.below(12)).min(SIZE);
        if self.sent.iter().any(|s| s.range.start < range.end && range.start < s.range.end) {
            return self.end_one(rng);
        }
        match rng.below(16) {
            0..6 => self.send(Op::Write, OpFlags::NONE, range),
            6..8 => self.send(Op::Write, OpFlags::FUA, range),
            8 => self.send(Op::Discard, OpFlags::NONE, range),
            9 => self.send(Op::WriteZeroes, if rng.one_in(3) { OpFlags::FUA } else { OpFlags::NONE }, range),
            10 => self.send(Op::Flush, OpFlags::NONE, SIZE..SIZE),
            11..13 => self.send(Op::Read, OpFlags::NONE, range),
            13 if rng.one_in(4) => {
                suspend(&self.world.md);
                resume(&self.world.md);
            }
            _ => self.end_one(rng),
        }
    }

    /// Takes one of those that are done, as long as there are many out.
    fn end_one(&mut self, rng: &mut Rng) {
        if self.sent.is_empty() {
            return;
        }
        let at = rng.below(self.sent.len() as u64) as usize;
        let sent = self.sent.swap_remove(at);
        let status = self.client.wait(sent.token);
        self.ended(&sent, status);
    }

    fn ended(&mut self, sent: &Sent, status: Status) {
        match sent.op {
            Op::Read if status.is_ok() => {
                let data = self.client.data(sent.token);
                for (sector, bytes) in sent.range.clone().zip(data.chunks(512)) {
                    let value = history::value(bytes).expect("a sector is whole");
                    assert!(
                        self.history.may_read(sector, value),
                        "{sector}: {value:#x}: {}",
                        self.history.describe(sector)
                    );
                }
            }
            Op::Read => {}
            Op::Flush if status.is_ok() => self.history.flushed(&sent.operation),
            Op::Flush => {}
            _ => self.history.done(&sent.operation, status.is_ok(), sent.durable),
        }
    }

    fn end_all(&mut self) {
        for sent in std::mem::take(&mut self.sent) {
            let status = self.client.wait(sent.token);
            self.ended(&sent, status);
        }
    }
}

/// Lives by a seed, each of which ends with a cut.
fn lives(seed: u64, features: &str) {
    let mut rng = Rng::new(seed);
    let world = World::new(seed, features);
    let mut history = History::zeroes(SIZE);
    let mut next = 1;
    for _ in 0..3 {
        let client = Client::new(&world.rig, &world.md);
        let mut life = Life { world: &world, client, history, sent: Vec::new(), next };
        for _ in 0..10 + rng.below(60) {
            life.step(&mut rng);
        }
        let quiet = rng.one_in(2);
        if quiet {
            life.end_all();
        }
        let (before, cut_seed) = (world.content(), rng.next());
        let cut = world.md.cut_power(cut_seed, true).unwrap();
        assert_eq!(cut.whole + cut.torn + cut.lost, cut.writes, "seed {seed}: {cut}");
        if quiet {
            let mut again = before;
            for (sector, data, sectors) in udm_targets::power_cut::replay(&cut.record.unwrap(), cut_seed).unwrap() {
                for at in 0..sectors.get() {
                    let value = |d: &Vec<u8>| history::value(&d[at as usize * 512..][..512]).unwrap();
                    again[(sector.get() + at) as usize] = data.as_ref().map_or(0, value);
                }
            }
            assert_eq!(again, world.content(), "seed {seed}: the record says it again");
        }
        life.end_all();
        assert!(world.md.is_off() && world.status().starts_with("off 0 0/"), "{}", world.status());
        let (read, flush) = (life.client.read(0, 1), life.client.range(Op::Flush, OpFlags::NONE, 0, 0));
        assert_eq!([life.client.wait(read), life.client.wait(flush)], [Status::Io; 2]);
        assert_eq!(world.md.cut_power(1, false).unwrap_err().errno, udm_base::Errno::EBUSY);
        (history, next) = (life.history, life.next);
        drop(life.client);
        world.rig.reload(&world.md, &world.table);
        let io = world.rig.io(&world.md);
        for sector in 0..SIZE {
            let value = history::value(&read_at(&io, sector)).expect("a sector is whole");
            assert!(
                history.may_survive(sector, value),
                "seed {seed}, sector {sector} is {value:#x}: {}",
                history.describe(sector)
            );
            history.settle(sector, value);
        }
    }
}

fn read_at(io: &BlockingIo, sector: u64) -> Vec<u8> {
    read(io, sector, 1)
}

#[test]
fn what_was_flushed_is_there_and_the_rest_may_be() {
    for seed in 0..150 {
        lives(seed, "");
    }
}

#[test]
fn a_full_cache_writes_back() {
    const WRITE: u64 = 512;
    let rig = Rig::default();
    let disk = rig.disk_with("/disk", 16 * WRITE, Limits { write_cache: true, ..Limits::default() });
    let md = rig.device("x", &format!("0 {} power-cut /disk 0 2 max_unflushed 1", 16 * WRITE));
    let mut client = Client::new(&rig, &md);
    let tokens: Vec<u64> =
        (0..16).map(|n| client.write(n * WRITE, pattern(n * WRITE, WRITE, 1), OpFlags::NONE)).collect();
    for token in tokens {
        assert_eq!(client.wait(token), Status::Ok);
    }
    let writes = disk.log().iter().filter(|bio| bio.contains("Write")).count();
    assert!((10..16).contains(&writes), "{writes} were written back");
    let io = rig.io(&md);
    assert!(read(&io, 0, 16 * WRITE) == pattern(0, 16 * WRITE, 1));
    // What has no data needs no room, and what is larger than the cache goes through it.
    io.range(Op::WriteZeroes, OpFlags::NONE, Sector::ZERO, Sectors::new(16 * WRITE)).unwrap();
    io.write(Sector::ZERO, &pattern(0, 8 * WRITE, 4), OpFlags::NONE).unwrap();
    assert!(read(&io, 0, 8 * WRITE) == pattern(0, 8 * WRITE, 4) && read(&io, 8 * WRITE, 1) == vec![0; 512]);
    // A device that fails: what has no room fails, and goes on when it is well again.
    disk.failing.store(true, std::sync::atomic::Ordering::Relaxed);
    let ended: Vec<Status> = (0..16)
        .map(|n| {
            let token = client.write(n * WRITE, pattern(n * WRITE, WRITE, 2), OpFlags::NONE);
            client.wait(token)
        })
        .collect();
    assert!(ended.contains(&Status::Io), "{ended:?}");
    disk.failing.store(false, std::sync::atomic::Ordering::Relaxed);
    io.flush().unwrap();
    let token = client.write(0, pattern(0, WRITE, 3), OpFlags::NONE);
    assert_eq!(client.wait(token), Status::Ok);
}

#[test]
fn nothing_is_lost_without_a_cut() {
    let world = World::new(2, "");
    let io = world.rig.io(&world.md);
    write(&io, 3, 8, 1);
    assert_eq!(world.status(), "on 1 4/65536");
    assert!(world.content().iter().all(|value| *value == 0), "it is in memory");
    world.rig.reload(&world.md, &format!("0 {SIZE} linear /disk 0"));
    assert!(read(&io, 3, 8) == pattern(3, 8, 1), "the table that goes writes it down");
    let error = world.md.cut_power(1, false).unwrap_err().to_string();
    assert!(error.contains("x has no power to cut"), "{error}");
}

#[test]
fn fua_makes_itself_durable_and_nothing_else() {
    // Until a cut that loses all that may be lost.
    for seed in 0.. {
        let world = World::new(2, "");
        let io = world.rig.io(&world.md);
        write(&io, 0, 4, 1);
        io.write(Sector::new(2), &pattern(2, 4, 2), OpFlags::FUA).unwrap();
        write(&io, 8, 1, 3);
        let cut = world.md.cut_power(seed, false).unwrap();
        assert_eq!(cut.writes, 2);
        drop(io);
        world.rig.reload(&world.md, &world.table);
        let io = world.rig.io(&world.md);
        assert!(read(&io, 2, 4) == pattern(2, 4, 2), "{cut}");
        if cut.lost == 2 {
            assert!(read(&io, 0, 2) == vec![0; 1024] && read(&io, 8, 1) == vec![0; 512]);
            break;
        }
    }
}

#[test]
fn the_atomic_unit_is_kept() {
    for seed in 0..300 {
        let world = World::new(2, " 2 atomic 8");
        let io = world.rig.io(&world.md);
        write(&io, 4, 40, 1);
        world.md.cut_power(seed, false).unwrap();
        let content = world.disk.content();
        let mut bytes = vec![0; SIZE as usize * 512];
        content.read(Sector::ZERO, &mut bytes);
        let there: Vec<bool> = bytes.chunks(512).map(|sector| sector.iter().any(|b| *b != 0)).collect();
        for unit in [4..8, 8..16, 16..24, 24..32, 32..40, 40..44] {
            assert!(there[unit.clone()].iter().all(|is| *is == there[unit.start]), "seed {seed}: {unit:?} is torn");
        }
    }
}

#[test]
fn tables_and_messages() {
    let rig = Rig::default();
    rig.disk("/disk", 100);
    rig.disk_with("/4k", 800, Limits { logical_block_size: 4096, ..Limits::default() });
    let md = rig.device("x", "0 100 power-cut /disk 0");
    for (table, expect) in [
        ("0 10 power-cut", "Invalid argument count"),
        ("0 10 power-cut /none 0", "Device lookup failed"),
        ("0 10 power-cut /disk x", "Invalid device sector"),
        ("0 10 power-cut /disk 0 1 atomic 8", "Invalid number of feature args: expected 2 of them"),
        ("0 10 power-cut /disk 0 1 atomic", "Invalid feature argument"),
        ("0 10 power-cut /disk 0 2 atomic 0", "Invalid feature argument: expected sectors from 1 to 1048576, found 0"),
        ("0 8 power-cut /4k 0 2 atomic 12", "expected a multiple of 8 sectors, the device's block, found 12"),
        ("0 10 power-cut /disk 0 2 max_unflushed 0", "expected MiB from 1 to"),
        ("0 10 power-cut /disk 0 2 atomik 8", "Unrecognised feature requested: found \"atomik\""),
        ("0 10 power-cut /disk 0\n10 10 zero", "power-cut"),
    ] {
        let error = rig.load(&md, table, false).expect_err(table).to_string();
        assert!(error.contains(expect), "{table}: {error}");
    }
    for table in
        ["/disk 0", "/disk 5 2 atomic 8", "/disk 0 4 max_unflushed 1 atomic 16", "/disk 0 0", "/4k 0 2 atomic 8"]
    {
        let len = if table.starts_with("/4k") { 80 } else { 50 };
        rig.reload(&md, &format!("0 {len} power-cut {table}"));
        let shown = md.table(TableSlot::Active).unwrap().lines(StatusKind::Table)[0].params.clone();
        assert_eq!(shown, table);
    }
    for words in [&["cut"][..], &["cut", "x"], &["cut", "1", "2"], &["snip", "1"]] {
        let error = md.message(Sector::ZERO, words).unwrap_err().to_string();
        assert!(error.contains("expected cut <seed>, a number"), "{error}");
    }
    assert_eq!(
        md.message(Sector::ZERO, &["cut", "9"]).unwrap(),
        "seed 9: of 0 unflushed writes 0 are whole, 0 torn, 0 lost"
    );
}

#[test]
fn records_that_are_none() {
    let world = World::new(2, "");
    let io = world.rig.io(&world.md);
    write(&io, 0, 4, 1);
    let good = world.md.cut_power(1, true).unwrap().record.unwrap();
    assert!(udm_targets::power_cut::replay(&good, 1).is_ok());
    type Row = (fn(&mut Vec<u8>), &'static str);
    const ROWS: &[Row] = &[
        (|r| r.truncate(3), "superblock, length"),
        (|r| r[0] = 0, "superblock, magic"),
        (|r| r[512 + 32] = b'b', "entry 0 at sector 1: this is no record of a power cut"),
        (|r| r[512 + 32 + 7] = b'0', "entry 0 at sector 1: this is no record of a power cut"),
        (|r| r[1024 + 16] = 2, "entry 1 at sector 2: this is no record of a power cut"),
        (|r| r[16] = 0, "it does not tell the atomic unit"),
    ];
    for (harm, expect) in ROWS {
        let mut record = good.clone();
        harm(&mut record);
        let error = udm_targets::power_cut::replay(&record, 1).unwrap_err();
        assert!(error.contains(expect), "{expect}: {error}");
    }
}
