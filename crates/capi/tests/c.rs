//! Programs in C against the library as it is built here.

mod support;

use std::path::Path;
use std::process::{Command, Output};
use support::library;

/// Compiles `source` and runs it. `None` where there is no compiler.
fn run(source: &Path) -> Option<Output> {
    if Command::new("cc").arg("--version").output().is_err() {
        println!("SKIP programs in C: there is no cc");
        return None;
    }
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("program");
    let (manifest, library) = (Path::new(env!("CARGO_MANIFEST_DIR")), library());
    let compiled = Command::new("cc")
        .args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-D_GNU_SOURCE", "-I"])
        .arg(manifest.join("include"))
        .arg(source)
        .arg("-L")
        .arg(&library)
        .args(["-ludm", "-o"])
        .arg(&program)
        .output()
        .unwrap();
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    Some(Command::new(&program).env("LD_LIBRARY_PATH", &library).output().unwrap())
}

fn check(source: &str, expect: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(source);
    let Some(output) = run(&path) else { return };
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{out}{err}");
    assert_eq!(out, expect, "{err}");
}

#[test]
fn the_example() {
    check("examples/hello.c", "both: 2097152 bytes in blocks of 512\nread back: uo\n");
}

#[test]
fn commands() {
    check("tests/commands.c", include_str!("commands.txt"));
}

#[test]
fn polled() {
    let line = |device: &str, can: &str| format!("{device}: {can} be polled, 16 right, each twice\n");
    check("tests/polled.c", &(line("p", "can") + &line("i", "cannot") + &line("r", "can")));
}

#[test]
fn refusals() {
    check("tests/refusals.c", include_str!("refusals.txt"));
}
