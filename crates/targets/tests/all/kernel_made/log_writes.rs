//! The same writes, one at a time, come to the log that the kernel wrote, to the byte.

use crate::rig::{Disk, Rig, read};
use std::sync::Arc;
use udm_base::{Sector, Sectors};
use udm_core::{MappedDevice, StatusKind, TableSlot};
use udm_io::{BlockingIo, Limits, Op, OpFlags};
use udm_sim::golden::{Record, pattern};

struct World {
    rig: Rig,
    log: Arc<Disk>,
    md: Arc<MappedDevice>,
}

impl World {
    fn new(log_bytes: usize, block: u32) -> Self {
        let rig = Rig::default();
        let limits =
            Limits { logical_block_size: block, physical_block_size: block, write_cache: true, ..Limits::default() };
        rig.disk_with("/dev/ram0", 4096, limits);
        let log = rig.disk("/dev/ram1", log_bytes as u64 / 512);
        let io = BlockingIo::new(&rig.domain, log.clone()).unwrap();
        io.range(Op::WriteZeroes, OpFlags::NONE, Sector::ZERO, log.memory().sectors()).unwrap();
        let md = rig.device("l", "0 4096 log-writes /dev/ram0 /dev/ram1");
        Self { rig, log, md }
    }

    fn status(&self) -> String {
        let table = self.md.table(TableSlot::Active).unwrap();
        table.lines(StatusKind::Info { noflush: false })[0].params.clone()
    }

    fn run(&self, words: &[&str]) {
        let number = |at: usize| words[at].parse::<u64>().unwrap();
        let io = self.rig.io(&self.md);
        match words[0] {
            "write" => {
                let (sector, count) = (number(1), number(2));
                let after = words.get(4);
                let flags = if after == Some(&"sync") { OpFlags::FUA } else { OpFlags::NONE };
                io.write(Sector::new(sector), &pattern(1, sector, count, number(3) as u32), flags).unwrap();
                if after.is_some() {
                    io.flush().unwrap();
                }
            }
            "discard" => {
                io.range(Op::Discard, OpFlags::NONE, Sector::new(number(1)), Sectors::new(number(2))).unwrap();
            }
            "mark" => _ = self.md.message(Sector::ZERO, &["mark", words[1]]).unwrap(),
            "remove" => {
                drop(io);
                self.rig.registry.remove(&self.md, false).unwrap();
            }
            _ => panic!("{words:?}"),
        }
    }
}

/// What the superblock's padding holds is what lay on the kernel's stack.
fn without_padding(mut log: Vec<u8>) -> Vec<u8> {
    log[28..32].fill(0);
    log
}

#[test]
fn logs_are_equal() {
    let mut logs = 0;
    for record in Record::all("log-writes") {
        let Some(kernels) = record.image("log") else { continue };
        let block = record.lines("block").next().unwrap()[1].parse().unwrap();
        let world = World::new(kernels.len(), block);
        for line in record.text.lines() {
            match line.split_once(' ') {
                Some(("+", command)) => world.run(&command.split(' ').collect::<Vec<_>>()),
                Some(("status", expect)) => assert_eq!(world.status(), expect, "{}", record.name),
                _ => {}
            }
        }
        let ours = read(&BlockingIo::new(&world.rig.domain, world.log.clone()).unwrap(), 0, kernels.len() as u64 / 512);
        let (ours, kernels) = (without_padding(ours), without_padding(kernels));
        let differs = ours.iter().zip(&kernels).position(|(a, b)| a != b);
        assert_eq!(differs, None, "{}: the first byte that differs", record.name);
        logs += 1;
    }
    assert_eq!(logs, 3);
}

/// What the kernel takes and refuses is taken and refused here, with its words.
#[test]
fn refusals_are_equal() {
    let record = Record::all("log-writes").into_iter().find(|record| record.name == "refusals").unwrap();
    let world = World::new(1 << 20, 512);
    let (mut ended, mut compared) = (None, 0);
    for line in record.text.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            ["+", "create", ..] => {
                let md = world.rig.registry.create("other", "", None).unwrap();
                ended = Some(world.rig.load(&md, &words[2..].join(" "), false).map(|()| String::new()));
                world.rig.registry.remove(&md, false).unwrap();
            }
            ["+", "message", ..] => ended = Some(world.md.message(Sector::ZERO, &words[2..])),
            ["ok"] => assert!(ended.as_ref().unwrap().is_ok(), "{line}: {ended:?}"),
            ["failed"] => assert!(ended.as_ref().unwrap().is_err(), "{line}: {ended:?}"),
            ["said", "log-writes:", ..] => {
                let ours = ended.as_ref().unwrap().as_ref().unwrap_err().to_string();
                assert!(ours.contains(&words[2..].join(" ")), "{line}: {ours}");
                compared += 1;
            }
            _ => {}
        }
    }
    assert_eq!(compared, 3);
}
