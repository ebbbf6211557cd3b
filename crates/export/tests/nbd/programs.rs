//! Clients that nobody here wrote. Each is skipped where it is not installed.

use crate::served::{SIZE, Served};
use std::path::Path;
use std::process::{Command, Output};

/// Whether a program can be run; says so if not.
fn has(program: &str) -> bool {
    let found = Command::new(program).arg("--version").output().is_ok();
    if !found {
        println!("SKIP {program} is not installed");
    }
    found
}

/// Runs a program, which must succeed; its standard output.
#[track_caller]
fn run(program: &str, args: &[&str]) -> String {
    let Output { status, stdout, stderr } =
        Command::new("timeout").arg("120").arg(program).args(args).output().expect("timeout(1) runs");
    let (stdout, stderr) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    assert!(status.success(), "{program} {args:?}: {status}\n{stdout}\n{stderr}");
    stdout.into_owned()
}

/// A file of the exports' size: data, a hole, data.
fn image(path: &Path) {
    let mut bytes = vec![0u8; SIZE as usize];
    let (head, tail) = bytes.split_at_mut(SIZE as usize / 2);
    for (i, byte) in head[..10 << 20].iter_mut().chain(&mut tail[3 << 20..5 << 20]).enumerate() {
        *byte = (i as u32).wrapping_mul(0x9e37_79b1).to_be_bytes()[0] | 1;
    }
    std::fs::write(path, bytes).expect("room for an image");
}

#[test]
fn nbdinfo_sees_what_the_server_can() {
    if !has("nbdinfo") {
        return;
    }
    let served = Served::memory();
    let json = run("nbdinfo", &["--json", &served.uri("mem")]);
    for expect in [
        "\"export-name\": \"mem\"",
        "\"export-size\": 67108864",
        "\"is_read_only\": false",
        "\"can_multi_conn\": true",
        "\"can_df\": true",
        "\"can_fast_zero\": true",
        "\"block_size_minimum\": 512",
        "\"block_size_maximum\": 33554432",
        "\"base:allocation\"",
    ] {
        assert!(json.contains(expect), "{expect} is not in\n{json}");
    }
    assert!(run("nbdinfo", &["--json", &served.uri("ro")]).contains("\"is_read_only\": true"));
    let list = run("nbdinfo", &["--list", "--json", &served.uri("")]);
    assert!(list.contains("\"mem\"") && list.contains("\"ro\""), "{list}");
    assert_eq!(run("nbdinfo", &["--size", &served.uri("mem")]).trim(), "67108864");
    assert!(run("nbdinfo", &["--map", &served.uri("mem")]).contains("67108864"));
    let unknown = Command::new("nbdinfo").arg(served.uri("nope")).output().expect("nbdinfo runs");
    assert!(!unknown.status.success());
}

#[test]
fn nbdcopy_copies_in_and_out() {
    if !has("nbdcopy") {
        return;
    }
    let served = Served::memory();
    let (source, copy) = (served.dir.path().join("source"), served.dir.path().join("copy"));
    image(&source);
    let (source_name, copy_name) = (source.to_str().expect("text"), copy.to_str().expect("text"));
    for more in [&[][..], &["--connections=1", "--requests=200"], &["--synchronous"], &["--flush", "--allocated"]] {
        run("nbdcopy", &[more, &[source_name, &served.uri("mem")]].concat());
        run("nbdcopy", &[more, &[&served.uri("mem"), copy_name]].concat());
        assert!(std::fs::read(&source).expect("there") == std::fs::read(&copy).expect("there"), "{more:?}");
        std::fs::remove_file(&copy).expect("there");
        assert!(served.server.reap_hangups());
        assert_eq!(served.open(), 0, "every client is noticed to have gone");
    }
}

#[test]
fn qemu_img_converts_compares_and_maps() {
    if !has("qemu-img") {
        return;
    }
    let served = Served::memory();
    let source = served.dir.path().join("source");
    image(&source);
    let (source, uri) = (source.to_str().expect("text"), served.uri("mem"));
    run("qemu-img", &["convert", "-n", "-f", "raw", "-O", "raw", "-W", "-m", "16", source, &uri]);
    assert!(run("qemu-img", &["compare", "-f", "raw", "-F", "raw", source, &uri]).contains("identical"));
    let map = run("qemu-img", &["map", "--output=json", "-f", "raw", &uri]);
    assert!(map.contains("\"length\": 67108864") || map.contains("\"start\": 0"), "{map}");
    run("qemu-img", &["bench", "-f", "raw", "-c", "2000", "-d", "32", "-s", "4096", &uri]);
    run("qemu-img", &["bench", "-f", "raw", "-w", "--flush-interval", "50", "-c", "2000", "-d", "32", &uri]);
    if has("qemu-io") {
        let script = [
            "write -P 0x5a 1M 64k",
            "write -z 1M 4k",
            "discard 2M 1M",
            "flush",
            "read -P 0 1M 4k",
            "read -P 0x5a 1028k 60k",
        ];
        let args: Vec<&str> = ["-f", "raw"].into_iter().chain(script.iter().flat_map(|c| ["-c", c])).collect();
        run("qemu-io", &[&args[..], &[uri.as_str()]].concat());
    }
}

#[test]
fn nbdsh_and_odd_requests() {
    // It is a Python program, whose module the first python3 on the path may not have.
    if !Command::new("nbdsh")
        .env("PATH", "/usr/bin:/bin")
        .args(["-c", "pass"])
        .output()
        .is_ok_and(|o| o.status.success())
    {
        println!("SKIP nbdsh is not installed");
        return;
    }
    let served = Served::memory();
    // Strict mode off: the library sends what it would refuse.
    let script = r#"
import errno
h.set_strict_mode(0)
h.connect_uri(uri)
size = h.get_size()
def fails(expect, call, *args, **more):
    try:
        call(*args, **more)
    except nbd.Error as error:
        assert error.errnum == expect, (error.errnum, expect, call)
    else:
        assert False, ("no error", call)
fails(errno.EINVAL, h.pread, 512, size)
fails(errno.EINVAL, h.pread, 100, 0)
fails(errno.ENOSPC, h.pwrite, b"x" * 1024, size - 512)
fails(errno.EINVAL, h.pwrite, b"x" * 512, 1)
fails(errno.EINVAL, h.trim, 1024, size - 512)
fails(errno.ENOSPC, h.zero, 1024, size - 512)
h.pwrite(b"a" * 4096, 8192, nbd.CMD_FLAG_FUA)
h.zero(512, 8192, nbd.CMD_FLAG_NO_HOLE | nbd.CMD_FLAG_FAST_ZERO)
h.flush()
assert h.pread(4096, 8192, nbd.CMD_FLAG_DF) == bytearray(512) + b"a" * 3584
h.trim(1 << 20, 1 << 20, nbd.CMD_FLAG_FUA)
h.cache(1 << 20, 0)
h.shutdown()
"#;
    let set = format!("uri = {:?}", served.uri("mem"));
    run("env", &["PATH=/usr/bin:/bin", "nbdsh", "-c", &set, "-c", script]);
}

#[test]
fn fio_verifies_what_it_wrote() {
    if !has("fio") {
        return;
    }
    let engines = Command::new("fio").arg("--enghelp").output().expect("fio runs").stdout;
    if !String::from_utf8_lossy(&engines).lines().any(|line| line.trim() == "nbd") {
        println!("SKIP fio has no nbd engine");
        return;
    }
    let served = Served::memory();
    let uri = format!("--uri={}", served.uri("mem"));
    for (rw, bs) in [("randwrite", "4k"), ("randrw", "512-64k"), ("write", "1m")] {
        let (rw, bs) = (format!("--rw={rw}"), format!("--bsrange={bs}"));
        let bs = if bs.contains('-') && bs.matches('-').count() > 2 { bs } else { bs.replace("bsrange", "bs") };
        run(
            "fio",
            &[
                "--name=v",
                "--ioengine=nbd",
                &uri,
                &rw,
                &bs,
                "--iodepth=32",
                "--size=32m",
                "--verify=crc32c",
                "--verify_state_save=0",
            ],
        );
    }
}
