//! Programs that nobody here wrote, and what each must find with a device.

pub(crate) mod fio;
mod nbdcopy;
mod nbdinfo;
pub(crate) mod nbdsh;
mod qemu;

use crate::kinds::Subject;
use std::process::{Command, Output};

/// A program, and what it does with a device that is fresh.
pub(crate) struct Program {
    pub(crate) installed: fn() -> bool,
    pub(crate) check: fn(&Subject),
}

/// All of them.
pub(crate) const PROGRAMS: &[Program] = &[
    Program { installed: || installed("nbdinfo"), check: nbdinfo::check },
    Program { installed: || installed("nbdcopy"), check: nbdcopy::check },
    Program { installed: nbdsh::installed, check: nbdsh::check },
    Program { installed: || installed("qemu-img") && installed("qemu-io"), check: qemu::check },
    Program { installed: fio::installed, check: fio::check },
];

/// Whether a program is there; says so if not.
pub(crate) fn installed(program: &str) -> bool {
    installed_as(program, "--version")
}

/// As [`installed`], for a program that tells its version by another option.
pub(crate) fn installed_as(program: &str, option: &str) -> bool {
    let found = command(program).arg(option).output().is_ok_and(|output| output.status.success());
    if !found {
        println!("SKIP {program} is not installed");
    }
    found
}

/// The program, ended when it hangs. Administrators' programs are found, too.
fn command(program: &str) -> Command {
    let path = std::env::var("PATH").unwrap_or_default();
    let mut command = Command::new("timeout");
    command.args(["100", program]).env("PATH", format!("{path}:/usr/sbin:/sbin")).env("LC_ALL", "C");
    command
}

/// Runs a program to its end: whether it succeeded, and all that it printed.
pub(crate) fn outcome(program: &str, args: &[&str]) -> (bool, String) {
    let Output { status, stdout, stderr } = command(program).args(args).output().expect("timeout(1) is there");
    let text = [stdout, stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    (status.success(), text)
}

/// Runs a program that must succeed. What it printed.
#[track_caller]
pub(crate) fn run(program: &str, args: &[&str]) -> String {
    let (success, text) = outcome(program, args);
    assert!(success, "{program} {args:?} fails:\n{text}");
    text
}

/// Runs a program that must fail, saying `why` in one of these ways.
#[track_caller]
pub(crate) fn fails(program: &str, args: &[&str], why: &[&str]) {
    let (success, text) = outcome(program, args);
    assert!(!success, "{program} {args:?} must fail:\n{text}");
    assert!(why.iter().any(|w| text.contains(w)), "{program} {args:?} fails without {why:?}:\n{text}");
}

/// Whether two files hold the same bytes.
#[track_caller]
pub(crate) fn same(a: &std::path::Path, b: &std::path::Path) -> bool {
    let read = |path| std::fs::read(path).expect("a file to compare");
    read(a) == read(b)
}
