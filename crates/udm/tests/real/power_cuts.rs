//! Programs and file systems whose power is cut: the short forms of `scripts/power-cuts.py` and
//! `scripts/log-writes-fs.sh`, which do it a thousand times.

use std::path::{Path, PathBuf};
use std::process::Command;
use udm_testing::installed;

fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts").join(name)
}

#[track_caller]
fn run(command: &mut Command) {
    let output = command.output().expect("it starts");
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{command:?}: {out}{err}");
    println!("{out}");
}

/// Cuts a program off some times; without its fsync until a loss is found, fifty times at most.
#[track_caller]
fn cuts(program: &str, words: &[&str]) {
    if !installed("python3") {
        return;
    }
    let udm = env!("CARGO_BIN_EXE_udm");
    run(Command::new("python3").arg(script("power-cuts.py")).args(["--udm", udm]).args(words).arg(program));
}

#[test]
fn sqlite_with_a_wal_keeps_what_it_acknowledged() {
    cuts("sqlite-wal", &["--cuts", "4"]);
}

#[test]
fn sqlite_with_a_rollback_journal_keeps_what_it_acknowledged() {
    cuts("sqlite-rollback", &["--cuts", "4"]);
}

#[test]
fn a_log_that_is_synced_keeps_what_it_acknowledged() {
    cuts("log", &["--cuts", "4"]);
}

#[test]
fn a_log_that_is_not_synced_is_found_out() {
    cuts("log", &["--cuts", "50", "--no-sync"]);
}

#[track_caller]
fn every_flush_is_clean(kind: &str) {
    run(Command::new("bash").arg(script("log-writes-fs.sh")).args([kind, "3"]).env("UDM", env!("CARGO_BIN_EXE_udm")));
}

#[test]
fn ext4_is_clean_at_every_flush() {
    every_flush_is_clean("ext4");
}

#[test]
fn xfs_is_clean_at_every_flush() {
    every_flush_is_clean("xfs");
}
