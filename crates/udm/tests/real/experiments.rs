//! `udm bench EXPERIMENT` runs the program that lies beside udm.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

/// udm in a folder of its own, where nothing else is.
fn bench(udm: &Path, words: &[&str]) -> Output {
    let mut command = Command::new(udm);
    command.arg("bench").args(words).env("UDM_DIR", udm.with_extension("d")).env("PATH", "/nonexistent");
    command.output().expect("udm can be run")
}

#[test]
fn an_experiment_is_a_program_of_its_own() {
    // On the file system of the build, since a hard link does not leave it.
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let udm = folder.path().join("udm");
    fs::hard_link(env!("CARGO_BIN_EXE_udm"), &udm).unwrap();

    let alone = bench(&udm, &["seeds", "--quick"]);
    let said = String::from_utf8_lossy(&alone.stderr);
    assert_eq!(alone.status.code(), Some(1), "{said}");
    assert!(said.contains("seeds: expected an option") && said.contains("`make` builds it"), "{said}");
    let help = String::from_utf8(bench(&udm, &["--help"]).stdout).unwrap();
    assert!(help.contains("--iodepth") && help.contains("udm-experiments is neither beside udm"), "{help}");

    let program = folder.path().join("udm-experiments");
    fs::write(&program, "#!/bin/sh\necho \"$@\"\nexit 7\n").unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let run = bench(&udm, &["seeds", "--quick"]);
    assert_eq!((run.status.code(), &*run.stdout), (Some(7), &b"seeds --quick\n"[..]));
}
