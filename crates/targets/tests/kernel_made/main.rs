//! What the real kernel made (`tests/goldens/thin`, `tests/goldens/snapshot`): opened here, every volume has the
//! checksum that the kernel read, and its status; and the same commands, given here, come to the same volumes and
//! statuses.
#![allow(missing_docs)]

mod record;
#[path = "../rig/mod.rs"]
mod rig;
mod world;

use record::{Line, commands, parsed};
use udm_sim::golden::Record;
use world::World;

/// What is in a record beside the commands, so that they alone do not come to the same.
const NOT_REPLAYED: &[(&str, &str)] = &[
    ("grown-64k", "its devices grow"),
    ("deep-64k", "written by fio"),
    ("needs-check-64k", "full when the kernel's layout of the metadata is full"),
    ("area-full-8k", "written by a loop"),
    ("areas-8k", "written by a loop"),
    ("half-merged-8k", "stopped half-way by its clock"),
    ("half-merged-po-16k", "stopped half-way by its clock"),
];

/// What is done at the end of a record, to see what it holds: from the last command that makes the snapshot or, for a
/// pool, its table and its live volumes.
#[test]
fn pools_open() {
    for record in Record::all("thin") {
        let Some(data) = record.image("data") else { continue };
        let world = World::new(&record.name);
        world.disk("meta", record.image("meta").expect("a pool has metadata"));
        world.disk("data", data);
        if let Some(sectors) = record.lines("origin").next().map(|words| words[1].parse().expect("sectors")) {
            world.disk("ext", udm_sim::golden::pattern(9, 0, sectors, 1));
        }
        world.open_pool(&record);
        world.check_volumes(&record);
    }
}

#[test]
fn exception_stores_open() {
    for record in Record::all("snapshot") {
        let world = World::new(&record.name);
        world.disk("base", record.image("origin").expect("a store has an origin"));
        world.disk("cow", record.image("cow").expect("a store has a COW device"));
        let made = |name: &str| commands(&record).rposition(|words| words[..3] == ["dmsetup", "create", name]);
        let Some(snap) = made("snap") else { panic!("{}: no snapshot", record.name) };
        let all: Vec<Vec<&str>> = commands(&record).collect();
        let merged_away = all[snap..].iter().any(|words| words[..3] == ["dmsetup", "create", "merge"]);
        if merged_away {
            world.expect_base(&record);
            continue;
        }
        for at in [Some(snap), made("org")].into_iter().flatten() {
            world.run(&all[at]).unwrap_or_else(|e| panic!("{}: {e}", record.name));
        }
        world.check_last(&record);
    }
}

/// From wherever the kernel had stopped, a merge gives the origin what the snapshot showed.
#[test]
fn exception_stores_merge() {
    let mut merged = 0;
    for record in Record::all("snapshot") {
        let (Some(origin), Some(cow)) = (record.image("origin"), record.image("cow")) else { continue };
        let last = |word: &'static str| record.lines(word).rfind(|words| words[1] == "snap");
        let Some(volume) = last("volume").filter(|_| last("status").is_none_or(|words| words[5] != "Invalid")) else {
            continue;
        };
        let (sectors, sum): (u64, _) = (volume[2].parse().expect("sectors"), volume[3]);
        let made = commands(&record).rfind(|words| words[..3] == ["dmsetup", "create", "snap"]).expect("a snapshot");
        let at = made.iter().position(|word| *word == "snapshot").expect("its target");
        let world = World::new(&record.name);
        world.disk("base", origin);
        world.disk("cow", cow);
        world.merge(sectors, &made[at + 3..].join(" "), sum);
        merged += 1;
    }
    assert!(merged >= 8, "{merged} were valid");
}

#[test]
fn commands_come_to_the_same() {
    for record in Record::all("thin").into_iter().chain(Record::all("snapshot")) {
        if NOT_REPLAYED.iter().any(|(name, _)| *name == record.name) {
            continue;
        }
        let world = World::new(&record.name);
        for (name, what) in [("meta", "meta"), ("data", "data"), ("base", "origin"), ("cow", "cow")] {
            if let Some(image) = record.image(what) {
                world.disk(name, vec![0; image.len()]);
            }
        }
        if let Some(sectors) = record.lines("origin").next().map(|words| words[1].parse().expect("sectors")) {
            world.disk("ext", udm_sim::golden::pattern(9, 0, sectors, 1));
        }
        for (at, line) in parsed(&record).iter().enumerate() {
            match line {
                Line::Command(words, succeeds) => {
                    let done = world.run(words);
                    assert_eq!(done.is_ok(), *succeeds, "{}: {}: {done:?}", record.name, words.join(" "));
                }
                Line::Volume(name, sectors, sha) => world.check_volume(name, *sectors, sha),
                Line::Status(name, line) => world.check_status(name, line, at),
            }
        }
    }
}
