//! The Python package against the library as it is built here.

mod support;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use support::library;

fn package() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../python")
}

/// Runs the interpreter in the package's folder. `None` where there is none.
fn python(args: &[&str]) -> Option<Output> {
    if !Command::new("python3").arg("--version").output().is_ok_and(|output| output.status.success()) {
        println!("SKIP the Python package: there is no python3");
        return None;
    }
    let mut command = Command::new("python3");
    command.args(args).current_dir(package()).env("PYTHONPATH", package()).env("PYTHONDONTWRITEBYTECODE", "1");
    Some(command.env("UDM_LIBRARY", library().join("libudm.so")).output().unwrap())
}

#[test]
fn its_own_tests() {
    let Some(output) = python(&["-W", "error", "-m", "unittest", "discover", "-s", "tests"]) else { return };
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{told}");
    assert!(!told.contains("Ran 0 tests"), "{told}");
}

#[test]
fn the_example() {
    let Some(output) = python(&["examples/pool.py"]) else { return };
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(String::from_utf8_lossy(&output.stdout), "volume: after \nsnapshot: before\nblocks in use: 2/1024\n");
}
