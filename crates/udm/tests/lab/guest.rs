//! The kernel's side: a script in a guest, with files of ours as its disks.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

fn lab(script: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/lab").join(script)
}

/// Whether there can be a guest here; says why not.
pub(crate) fn available() -> bool {
    let output = Command::new(lab("available.sh")).output().expect("available.sh runs");
    print!("{}", String::from_utf8_lossy(&output.stdout));
    assert!(output.status.success());
    output.stdout.is_empty()
}

/// Runs a script with the files as `/dev/vda`, `/dev/vdb` …; what it printed. The script stops at the first command
/// that fails, and so does the test.
pub(crate) fn run(dir: &Path, what: &str, disks: &[&Path], script: &str) -> String {
    let disks = disks.iter().flat_map(|disk| [OsStr::new("-d"), disk.as_os_str()]);
    boot(dir, what, disks, script, &[])
}

/// As [`run`], with options of `run-guest.sh` and arguments of the script, which have no spaces.
pub(crate) fn boot<'a>(
    dir: &Path,
    what: &str,
    options: impl IntoIterator<Item = &'a OsStr>,
    script: &str,
    args: &[&str],
) -> String {
    println!("-- {what}: the kernel");
    let path = dir.join(format!("{}.sh", what.replace(' ', "-")));
    let head = "set -eu\n. ./guest-lib.sh\ntrap 'echo \"failed in line $LINENO: $BASH_COMMAND\"' ERR\n";
    std::fs::write(&path, format!("{head}{script}")).unwrap();
    let mut command = Command::new(lab("run-guest.sh"));
    // Nothing is measured, and a guest that panics by itself would be a test that fails by itself.
    command.arg("-o").arg(dir.join("job")).env("TURNS", "1");
    let output = command.args(options).arg(&path).args(args).output().expect("run-guest.sh runs");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success(),
        "{what}, in the guest: {said}\n{}\nkernel: {}",
        String::from_utf8_lossy(&output.stderr),
        std::fs::read_to_string(dir.join("job/dmesg")).unwrap_or_default()
    );
    said
}

/// Compares the lines `volume NAME SHA256` of a guest with what must be there, in any order, none missing.
pub(crate) fn compare(what: &str, said: &str, expect: impl IntoIterator<Item = (String, String)>) {
    let found = |name: &str| -> Option<String> {
        let line = said.lines().find_map(|line| line.strip_prefix(&format!("volume {name} ")))?;
        Some(line.trim().to_owned())
    };
    let wrong: Vec<_> = expect.into_iter().filter(|(name, sum)| found(name).as_ref() != Some(sum)).collect();
    assert!(wrong.is_empty(), "{what}: the kernel reads otherwise, expected {wrong:?}, in: {said}");
}
