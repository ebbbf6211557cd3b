//! `udm log-writes` on logs that the kernel wrote (`tests/goldens/log-writes`).

use crate::common::{Place, stderr, stdout};
use udm_sim::golden::{Record, pattern};

/// The log of `ram-512`, changed.
fn log(place: &Place, change: impl FnOnce(&mut Vec<u8>)) {
    let record = Record::all("log-writes").into_iter().find(|r| r.name == "ram-512").unwrap();
    let mut bytes = record.image("log").unwrap();
    change(&mut bytes);
    std::fs::write(place.root().join("log"), bytes).unwrap();
}

fn run(place: &Place, words: &str) -> Result<String, String> {
    let output =
        place.udm(["log-writes"].into_iter().chain(words.split(' ').map(|w| if w == "FAIL" { "exit 3" } else { w })));
    if output.status.success() { Ok(stdout(&output)) } else { Err(stderr(&output)) }
}

/// What the sectors `at` of the replay hold: the generation that was written there, or 0.
fn generation(place: &Place, sector: u64) -> u32 {
    let bytes = std::fs::read(place.root().join("disk")).unwrap();
    let found = &bytes[sector as usize * 512..][..512];
    (1..10).find(|generation| found == pattern(1, sector, 1, *generation)).unwrap_or(0)
}

#[test]
fn list_and_find() {
    let place = Place::new();
    log(&place, |_| ());
    let all = run(&place, "list log").unwrap();
    let lines: Vec<Vec<&str>> = all.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines[0], ["ENTRY", "AT", "FLAGS", "START", "LENGTH", "MARK"]);
    assert_eq!(lines[1], ["0", "1", "NONE", "3", "1"]);
    assert_eq!(lines[5], ["4", "30", "MARK", "0", "0", "one"]);
    assert_eq!(lines[6], ["5", "31", "FUA", "8", "8"]);
    assert_eq!(lines[10], ["9", "299", "DISCARD", "2048", "64"]);
    assert_eq!(lines.last().unwrap()[5], "dm-log-writes-end");
    let json: serde_json::Value =
        serde_json::from_str(&run(&place, "list log --start-mark one --limit 1 --json").unwrap()).unwrap();
    assert_eq!(json["entries"], lines.len() as u64 - 1);
    assert_eq!(
        json["list"],
        serde_json::json!([
            {"entry": 5, "at": 31, "flags": "FUA", "start": 8, "length": 8, "mark": null}
        ])
    );
    for (words, expect) in [
        // As xfstests' replay-log prints them for this log.
        ("find log --end-mark one", "4@31\n"),
        ("find log --next-flush", "3@30\n"),
        ("find log --next-fua", "5@40\n"),
        ("find log --limit 1", "0@3\n"),
        ("find log --start-entry 4 --next-flush", "6@41\n"),
        ("find log --start-mark one --next-flush --next-fua", "5@40\n"),
    ] {
        assert_eq!(run(&place, words).as_deref(), Ok(expect), "{words}");
    }
}

#[test]
fn replays() {
    /// Words, and what sectors 0, 8, 64 and 1024 hold then.
    type Row = (&'static str, [u32; 4], &'static str);
    const ROWS: &[Row] = &[
        ("", [3, 2, 1, 2], "entries 0 to 16 replayed"),
        ("--end-mark one", [1, 0, 1, 0], "entries 0 to 4 replayed"),
        ("--next-fua", [1, 2, 1, 0], "entries 0 to 5 replayed"),
        ("--limit 2", [1, 0, 0, 0], "entries 0 to 1 replayed"),
        ("--start-entry 2 --next-flush", [0, 0, 1, 0], "entries 2 to 3 replayed"),
        ("--start-mark one --next-flush", [0, 2, 0, 0], "entries 5 to 6 replayed"),
        ("--start-sector 64 --end-sector 100", [0, 0, 1, 0], "entries 0 to 16 replayed"),
        ("--check true", [3, 2, 1, 2], "entries 0 to 16 replayed, 3 checks"),
        ("--check true --each fua,mark", [3, 2, 1, 2], "replayed, 5 checks"),
        ("--check true --each 5", [3, 2, 1, 2], "replayed, 3 checks"),
    ];
    let place = Place::new();
    log(&place, |_| ());
    for (words, expect, said) in ROWS {
        place.file("disk", 4096 * 512);
        let out = run(&place, format!("replay log disk {words}").trim()).unwrap();
        assert!(out.contains(said), "{words}: {out}");
        assert_eq!([0, 8, 64, 1024].map(|sector| generation(&place, sector)), *expect, "{words}");
    }
}

#[test]
fn a_check_sees_the_device_and_ends_the_replay() {
    let place = Place::new();
    log(&place, |_| ());
    place.file("disk", 4096 * 512);
    let words = ["log-writes", "replay", "log", "disk", "--each", "fua", "--check"];
    let output = place.udm(words.into_iter().chain(["cp $UDM_DEVICE at-$UDM_ENTRY; exit 3"]));
    assert_eq!(output.status.code(), Some(1));
    let said = stderr(&output);
    assert!(
        said.contains("the check failed after entry 5: cp $UDM_DEVICE at-$UDM_ENTRY; exit 3: exit status: 3"),
        "{said}"
    );
    assert_eq!(std::fs::read(place.root().join("at-5")).unwrap(), std::fs::read(place.root().join("disk")).unwrap());
    assert_eq!((generation(&place, 8), generation(&place, 1024)), (2, 0), "it goes no further");
}

#[test]
fn what_is_wrong_is_told() {
    /// What is done to the log, the words, what is said, and whether what comes before is replayed.
    type Row = (fn(&mut Vec<u8>), &'static str, &'static str);
    const ROWS: &[Row] = &[
        (|_| (), "find log", "expected --limit, --next-flush, --next-fua or --end-mark"),
        (|_| (), "find log --end-mark none", "log: no such entry in 17 from there on"),
        (|_| (), "find log --start-mark none --limit 1", "log: there is no mark \"none\""),
        (|_| (), "list log --start-entry 18", "log: --start-entry 18: the log has 17 entries"),
        (|_| (), "list none", "none"),
        (|_| (), "replay log small", "entry 0 at sector 1: sector 3 + 1 lies past the end of small at 2"),
        (|_| (), "replay log disk --each 0 --check true", "expected flush, fua, discard, mark, or a number"),
        (|_| (), "replay log disk --each flush", "--check"),
        (|log| log.truncate(17 * 512), "replay log disk", "log: superblock, nr_entries: found 17"),
        (|log| log.truncate(300 * 512), "replay log disk", "entry 10 at sector 300, length: the entry reaches past"),
        (|log| log.truncate(301 * 512), "replay log disk", "entry 10 at sector 300, nr_sectors: its data of 8 sectors"),
        (|log| log[0] = 0, "replay log disk", "log: superblock, magic: found"),
        (|log| log[8] = 2, "list log", "log: superblock, version: found 2, expected 1"),
        (|log| log[30 * 512 + 17] = 1, "replay log disk", "log: entry 4 at sector 30, flags: found 0x108"),
        (|log| log[31 * 512 + 400] = 1, "list log", "log: entry 5 at sector 31, padding: byte 400"),
        (|log| log.truncate(7), "list log", "log"),
        (Vec::clear, "list log", "log"),
    ];
    for (change, words, expect) in ROWS {
        let place = Place::new();
        log(&place, change);
        place.file("disk", 4096 * 512);
        place.file("small", 1024);
        let said = run(&place, words).expect_err(words);
        assert!(said.contains(expect), "{words}: {said}");
        assert!(!place.dir().join("lock").exists(), "nobody needs a daemon");
    }
}
