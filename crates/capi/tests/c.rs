//! Programs in C against the library as it is built here.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

/// Where the library lies: the folder that this test was built in. Not every way to build the tests builds it too.
fn library() -> PathBuf {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    let build = || {
        let exe = std::env::current_exe().expect("a test has a path");
        let profile = exe.ancestors().nth(2).expect("it lies in PROFILE/deps").to_owned();
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let target = profile.parent().expect("the target folder");
        let mut command = Command::new(cargo);
        command.args(["build", "--quiet", "--offline", "--package", "udm-capi", "--target-dir"]).arg(target);
        let name = profile.file_name().and_then(|name| name.to_str()).expect("a profile's name");
        command.args(["--profile", if name == "debug" { "dev" } else { name }]);
        let output = command.current_dir(env!("CARGO_MANIFEST_DIR")).output().expect("cargo runs its tests");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        profile
    };
    BUILT.get_or_init(build).clone()
}

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
fn polled() {
    let line = |device: &str, can: &str| format!("{device}: {can} be polled, 16 right, each twice\n");
    check("tests/polled.c", &(line("p", "can") + &line("i", "cannot") + &line("r", "can")));
}

#[test]
fn refusals() {
    check("tests/refusals.c", include_str!("refusals.txt"));
}
