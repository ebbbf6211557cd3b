//! `udm bench seeds --quick`: every experiment runs, and says what the interface promises. No time is judged.

use serde_json::Value;
use std::fs;
use std::process::{Command, Output};

/// The program, with the words that follow `udm bench`.
fn bench(words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_udm-experiments")).args(words).output().expect("the program can be run")
}

/// Fields that every row has, `null` where they do not apply.
const FIELDS: [&str; 15] = [
    "experiment",
    "row",
    "policy",
    "disk",
    "chunk",
    "size",
    "seed_figure",
    "seed_ratio",
    "baseline",
    "figure",
    "ratio",
    "limit",
    "seeks",
    "verdict",
    "command",
];
const EXPERIMENTS: [&str; 6] = ["no-clone", "zero-skip", "zero-check", "loop-ram", "snapshot-cow", "polling"];

#[test]
fn all_experiments_in_a_small_way() {
    let path = format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default());
    if !Command::new("mkfs.ext4").arg("-V").env("PATH", path).output().is_ok_and(|output| output.status.success()) {
        println!("SKIP mkfs.ext4 is not installed");
        return;
    }
    let out = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let folder = out.path().join("seeds");
    let done = bench(&["seeds", "--quick", "--out", folder.to_str().unwrap()]);
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let read = |name: &str| fs::read_to_string(folder.join(name)).unwrap_or_else(|e| panic!("{name}: {e}"));
    let document: Value = serde_json::from_str(&read("seeds.json")).unwrap();
    let rows = document["rows"].as_array().unwrap();
    for row in rows {
        let missing: Vec<_> = FIELDS.iter().filter(|field| row.get(field).is_none()).collect();
        assert!(missing.is_empty(), "{row}: without {missing:?}");
        // What is counted is the same on every machine and under every load.
        if row["limit_is"] == "exactly" {
            assert_eq!(row["verdict"], "pass", "{row}");
        }
        assert!(row["verdict"] != "SKIP" || row["reason"].is_string(), "{row}");
    }
    for name in EXPERIMENTS {
        let of = rows.iter().filter(|row| row["experiment"] == name).count();
        let own: Value = serde_json::from_str(&read(&format!("{name}.json"))).unwrap();
        assert!(of > 0 && own["rows"].as_array().unwrap().len() == of, "{name}: {of} rows");
        assert!(read(&format!("{name}.svg")).ends_with("</svg>\n"));
        assert!(read(&format!("{name}.md")).starts_with("# "));
    }
    assert!(read("seeds.md").contains("no-clone"));
    let page = read("index.html");
    assert!(["000", "001", "002", "003", "004"].iter().all(|seed| page.contains(&format!("{seed}</small>"))));
    // What it made beside its results is gone.
    let left: Vec<_> = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left.len(), 3 * (EXPERIMENTS.len()) + 3, "{left:?}");
}

#[test]
fn what_is_refused() {
    let out = tempfile::tempdir().unwrap();
    let file = out.path().join("file");
    fs::write(&file, "text").unwrap();
    let file = file.to_str().unwrap();
    for (args, code, expect) in [
        (vec![], 2, "expected an experiment"),
        (vec!["sedes"], 2, "sedes: expected an option of `udm bench`, or an experiment"),
        (vec!["seeds"], 2, "expected --out DIR"),
        (vec!["seeds", "--out", file], 1, "expected a folder that can be written"),
        (vec!["no-clone", "--quick", "--out", file], 1, "expected a folder that can be written"),
        (vec!["loop-ram", "--quick"], 2, "expected --out DIR"),
        (vec!["polling", "--out", "/proc/none"], 1, "expected a folder that can be written"),
        (vec!["loop-ram", "--out", out.path().to_str().unwrap(), "--fio-engine", "/none"], 2, "make fio-engine"),
        (vec!["seeds", "--fast"], 2, "--fast"),
    ] {
        let done = bench(&args);
        let said = String::from_utf8_lossy(&done.stderr);
        assert_eq!(done.status.code(), Some(code), "{args:?}: {said}");
        assert!(said.contains(expect), "{args:?}: {said}");
    }
}
