//! fio with the engine that runs a stack in fio's own process. Needs fio, a C compiler and fio's source, which
//! `FIO_SRC` names.

use std::path::PathBuf;
use std::process::{Command, Output};

fn root() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

/// The engine, or the reason why there is none.
fn engine() -> Result<PathBuf, String> {
    let src = std::env::var_os("FIO_SRC").filter(|src| !src.is_empty()).ok_or("FIO_SRC does not name fio's source")?;
    Command::new("fio").arg("--version").output().map_err(|_| "fio is not installed")?;
    let built = Command::new(root().join("fio-engine/build.sh")).arg("--debug").env("FIO_SRC", src).output();
    let built = built.map_err(|e| e.to_string())?;
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    Ok(PathBuf::from(String::from_utf8_lossy(&built.stdout).trim()))
}

fn fio(engine: &std::path::Path, words: &[&str]) -> Output {
    let mut command = Command::new("fio");
    command.args(["--name=t", "--thread=1", "--output-format=terse", "--verify_state_save=0"]);
    command.arg(format!("--ioengine=external:{}", engine.display())).args(words).output().unwrap()
}

// One test, since all of it needs one engine, which takes a while to build.
#[test]
fn jobs() {
    let engine = match engine() {
        Ok(engine) => engine,
        Err(why) => return println!("SKIP fio's engine: {why}"),
    };
    let concise = "--concise=i,,,,0 4096 linear null:size=2M:memory=1:latency_us=5 0;\
        s,,,,0 24576 striped 3 8 null:size=4M:memory=1:poll_queues=1:latency_us=5 0 null:size=4M:memory=1:poll_queues=1 0 \
        null:size=4M:memory=1:poll_queues=2 0;r,,,,0 131072 ram;l,,,,0 131072 linear /dev/mapper/r 0";
    for words in [
        "--rw=randrw --verify=crc32c --bs=4k --iodepth=16 --size=32m",
        "--rw=write --verify=md5 --bs=32k --iodepth=4 --filename=r",
        "--rw=randread --bs=512 --numjobs=3 --udm_hipri --size=4m",
        "--rw=randrw --bs=12k --iodepth=8 --udm_hipri --verify=crc32c --size=3m --filename=s",
        "--rw=randrw --bs=12k --numjobs=3 --iodepth=8 --udm_hipri --size=3m --filename=s",
        "--rw=randrw --bs=4k --udm_hipri --verify=crc32c --size=2m --filename=i",
        "--rw=randtrimwrite --bs=64k --fsync=10 --iodepth=8",
        "--rw=randwrite --bs=4k --iodepth=32 --udm_spin --size=8m",
    ] {
        let words: Vec<&str> = words.split(' ').chain([concise]).collect();
        let output = fio(&engine, &words);
        assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
    for (words, expect) in [
        (vec!["--rw=read", concise, "--thread=0"], "thread=1 is missing"),
        (vec!["--rw=read"], "concise= is missing"),
        (vec!["--rw=read", concise, "--filename=x"], "no device \"x\" in the specification; it has i, l, r, s"),
        (vec!["--rw=read", concise, "--filename=r:l"], "a job has one device"),
        (vec!["--rw=read", concise, "--size=65m"], "offset 0 and size 68157440: the device has 67108864 bytes"),
        (vec!["--rw=read", concise, "--offset=32m", "--size=33m"], "expected at most these"),
        (vec!["--rw=read", concise, "--offset=64m"], "expected at most these"),
        (vec!["--rw=read", concise, "--size=1m", "--numjobs=2", "--offset_increment=64m"], "expected at most these"),
        (vec!["--rw=read", "--concise=r,,,,0 8 rom"], "unknown target type"),
    ] {
        let output = fio(&engine, &words);
        let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains(expect), "{words:?}: {said}");
    }
}
