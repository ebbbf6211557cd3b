//! What an I/O costs in instructions, generator included: a figure that a loaded machine does not change.
//!
//! The example `instructions` is run under callgrind, which counts what happens within `udm_bench::job::run`. Limits
//! stand some ten per cent above what was counted when they were set. A change that goes past one has made the hot
//! path longer: shorten it, or raise the limit and say why. One that stays far below wants the limit lowered.
//!
//! callgrind knows no membarrier(2), so that entering a channel takes a fence in place of nothing: one instruction.

use std::path::PathBuf;
use std::process::Command;

/// I/Os of a run: enough that starting and ending a run vanish.
const IOS: u64 = 20_000;

/// Device, bytes of a request, depth, setting; at most so many instructions an I/O.
const LIMITS: &[(&str, u64, u64, Option<&str>, f64)] = &[
    // The generator, a channel, and a device that does nothing.
    ("null", 4096, 32, None, 295.0),
    // One linear above it, two and three step by step.
    ("n", 4096, 32, None, 412.0),
    ("n2", 4096, 32, Some("compile=0"), 528.0),
    ("n3", 4096, 32, Some("compile=0"), 643.0),
    // Two, three and four in one step.
    ("n2", 4096, 32, None, 412.0),
    ("n3", 4096, 32, None, 412.0),
    ("n8", 4096, 32, None, 412.0),
    // Two stripes on null devices.
    ("s", 4096, 32, None, 485.0),
    // Polled for: the null device, a linear, two, one over three devices, two stripes.
    ("null", 4096, 32, Some("poll"), 553.0),
    ("p", 4096, 32, Some("poll"), 684.0),
    ("p2", 4096, 32, Some("poll"), 684.0),
    ("p3", 4096, 32, Some("poll"), 720.0),
    ("ps", 4096, 32, Some("poll"), 765.0),
    // A remap by way of a clone.
    ("n", 4096, 32, Some("clone_always=1"), 788.0),
    // Memory, and a linear above it; the copy of 512 bytes is in these.
    ("r", 512, 1, None, 445.0),
    ("l", 512, 1, None, 445.0),
    ("l", 512, 1, Some("compile=0"), 566.0),
    // Blocks of a thin volume that have data: a look into the mapping cache, an epoch, and a remap.
    ("thin", 512, 1, None, 953.0),
    ("thin", 512, 1, Some("write"), 987.0),
    // An origin whose chunks have been copied: a bit for a write, nothing for a read, and a remap.
    ("origin", 512, 1, None, 663.0),
    ("origin", 512, 1, Some("write"), 757.0),
];

/// The example, built as a release is: what is counted is what is shipped.
fn program() -> PathBuf {
    let mut build = Command::new(env!("CARGO"));
    build.args(["build", "--quiet", "--release", "--package", "udm-bench", "--example", "instructions"]);
    build.current_dir(env!("CARGO_MANIFEST_DIR")).args(["--message-format", "json"]);
    let output = build.output().expect("cargo can be started");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).expect("cargo prints JSON");
    let artifacts = text.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    let path = artifacts.filter_map(|a| a["executable"].as_str().map(PathBuf::from)).reduce(|_, last| last);
    path.expect("cargo says where the program is")
}

/// Instructions an I/O.
fn count(program: &PathBuf, device: &str, bs: u64, depth: u64, setting: Option<&str>) -> f64 {
    let mut valgrind = Command::new("valgrind");
    valgrind.args(["--tool=callgrind", "--callgrind-out-file=/dev/null", "--toggle-collect=udm_bench::job::run*"]);
    valgrind.arg(program).args([device, &bs.to_string(), &depth.to_string(), &IOS.to_string()]).args(setting);
    let output = valgrind.output().expect("valgrind was there a moment ago");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let collected = said.lines().find_map(|line| line.split_once("Collected : "));
    let number = collected.and_then(|(_, number)| number.trim().parse::<u64>().ok());
    number.unwrap_or_else(|| panic!("callgrind says no count: {said}")) as f64 / IOS as f64
}

#[test]
fn instructions_of_an_io_stay_within_their_limits() {
    if !cfg!(target_arch = "x86_64") {
        println!("SKIP the limits are for x86-64");
        return;
    }
    if Command::new("valgrind").arg("--version").output().is_err() {
        println!("SKIP valgrind is not installed");
        return;
    }
    let program = program();
    let mut over = Vec::new();
    for (device, bs, depth, setting, limit) in LIMITS {
        let found = count(&program, device, *bs, *depth, *setting);
        let what = format!("{device:<4} {bs:>5} bytes, depth {depth:>2} {:<14}", setting.unwrap_or(""));
        println!("{what} {found:>6.1} instructions an I/O, limit {limit}");
        assert!(found > 50.0, "{what}: {found} is less than there can be: what was counted is not the loop");
        if found > *limit {
            over.push(format!("{what}: {found:.1} instructions an I/O, limit {limit}"));
        }
    }
    assert!(over.is_empty(), "{over:#?}");
}
