//! The command line against a device mapper in memory: what the real dmsetup printed for the same
//! commands, and what goes beyond it.

#[path = "support/fake_kernel.rs"]
mod fake_kernel;
#[path = "support/golden.rs"]
mod golden;

use fake_kernel::{FakeKernel, MAJOR};
use golden::{Backing, Place, World, replay, run};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use udm_base::{DevT, Errno};
use udm_client::dmsetup::{DmTransport, IoctlError};

/// An empty kernel and a place with four backing devices.
fn empty() -> (FakeKernel, Place, tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let sysfs = dir.path().join("sys");
    let cwd = dir.path().join("cwd");
    std::fs::create_dir_all(sysfs.join("dev/block")).unwrap();
    std::fs::create_dir(&cwd).unwrap();
    let backing =
        (0..4).map(|i| Backing { path: format!("/dev/nul{i}"), major: 252, minor: i, name: format!("nul{i}") });
    let backing: Vec<Backing> = backing.collect();
    for device in &backing {
        let link = sysfs.join(format!("dev/block/{}:{}", device.major, device.minor));
        symlink(format!("../../devices/virtual/block/{}", device.name), link).unwrap();
    }
    let kernel = FakeKernel::new(backing.iter().map(|b| (b.path.clone(), DevT::new(b.major, b.minor))).collect());
    let place = Place { backing, dm_major: MAJOR, node_dir: "/dev/mapper".into(), sysfs, cwd };
    (kernel, place, dir)
}

fn goldens() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/goldens/dmsetup")
}

#[test]
fn goldens_replay() {
    let mut count = 0;
    let mut failures = String::new();
    let only = std::env::var("GOLDEN").unwrap_or_default();
    for entry in std::fs::read_dir(goldens()).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if !name.ends_with(".golden") || !name.contains(&only) {
            continue;
        }
        let scenario = std::fs::read_to_string(&path).unwrap();
        // Those that read and write want targets that do; they are replayed against the daemon.
        if ["thin", "snapshot"].iter().any(|kind| name.starts_with(kind)) {
            continue;
        }
        let (mut kernel, place, _dir) = empty();
        let diffs = replay(&mut kernel, &place, &scenario);
        count += 1;
        for diff in diffs {
            failures += &format!("\n{name} {diff}\n");
        }
    }
    assert!(count > 0, "no goldens in {}", goldens().display());
    assert!(failures.is_empty(), "{failures}");
}

/// A scenario of our own: for each command line, the exit code and standard output.
fn check(kernel: &mut FakeKernel, place: &Place, line: &str, code: i32, stdout: &str) -> String {
    let outcome = run(kernel, place, line, "");
    assert_eq!((outcome.code, outcome.stdout.as_str()), (code, stdout), "{line}\n{}", outcome.stderr);
    outcome.stderr
}

#[test]
fn json() {
    let (mut kernel, place, _dir) = empty();
    let none = "{\"devices\":[]}\n";
    for command in ["info", "table", "status", "ls"] {
        check(&mut kernel, &place, &format!("udm {command} --json"), 0, none);
    }
    check(&mut kernel, &place, "udm create a -u U --table '0 8 linear /dev/nul0 0'", 0, "");
    check(&mut kernel, &place, "udm create b -r --table '0 8 zero'", 0, "");
    let mut json = |line: &str| -> serde_json::Value {
        let outcome = run(&mut kernel, &place, line, "");
        assert_eq!(outcome.code, 0, "{line}: {}", outcome.stderr);
        assert_eq!(outcome.stdout.lines().count(), 1, "{}", outcome.stdout);
        serde_json::from_str::<serde_json::Value>(&outcome.stdout).unwrap()["devices"].clone()
    };
    let info = json("udm info --json");
    assert_eq!(info[0]["name"], "a");
    assert_eq!(info[0]["uuid"], "U");
    assert_eq!((&info[0]["major"], &info[0]["minor"]), (&253.into(), &0.into()));
    assert_eq!((&info[0]["state"], &info[0]["remapped"]), (&"ACTIVE".into(), &7.into()));
    assert_eq!((&info[0]["read_only"], &info[1]["read_only"]), (&false.into(), &true.into()));
    assert_eq!(json("udm info --json b").as_array().unwrap().len(), 1);
    let table = json("udm table --json a");
    assert_eq!(table[0]["table"][0]["params"], "252:0 0");
    assert_eq!(table[0]["table"][0]["length"], 8);
    assert_eq!(json("udm status --json b")[0]["status"][0]["target"], "zero");
    assert_eq!(json("udm table --json --target zero").as_array().unwrap().len(), 1);
    assert_eq!(json("udm table --json -S 'name=b'")[0]["name"], "b");
    assert_eq!(json("udm ls --json")[1]["name"], "b");
    assert_eq!(json("udm ls --json --target linear")[0]["name"], "a");
    for refused in ["deps --json", "info --json -c", "table --json --concise", "ls --json --tree"] {
        let outcome = run(&mut kernel, &place, &format!("udm {refused}"), "");
        assert_eq!((outcome.code, outcome.stdout.as_str()), (1, ""), "{refused}");
        assert!(outcome.stderr.contains("--json"), "{}", outcome.stderr);
    }
}

#[test]
fn errors_say_what_to_do() {
    let (mut kernel, place, _dir) = empty();
    check(&mut kernel, &place, "udm create a --table '0 8 zero'", 0, "");
    check(&mut kernel, &place, "udm create top --table '0 8 linear /dev/mapper/a 0'", 0, "");
    let mut says = |line: &str, expect: &[&str]| {
        let stderr = check(&mut kernel, &place, line, 1, "");
        assert!(stderr.contains("udm: "), "{stderr}");
        for part in expect {
            assert!(stderr.contains(part), "{line}: {stderr} lacks {part:?}");
        }
    };
    says("udm remove a", &["cannot remove a: Device or resource busy", "--deferred"]);
    says("udm remove nosuch", &["cannot remove nosuch: No such device or address", "`ls` lists them"]);
    says("udm info nosuch", &["no such device nosuch"]);
    says("udm info /dev/mapper/nosuch", &["/dev/mapper/nosuch is no mapped device"]);
    says("udm inf", &["did you mean info?", "`udm help` lists the commands"]);
    says("udm rename a", &["which device?"]);
    says("udm rename a b c", &["got 3 arguments", "rename DEVICE NEW-NAME"]);
    says("udm stats list", &["not offered"]);
    says("udm create x --table '0 8'", &["line 1 of the table: expected the target's name", "     ^"]);
    says("udm create --concise 'x,,,,0 8 zero;y,,'", &["device 2", "got 3"]);
    says("udm info -c -o nonsense", &["no field \"nonsense\"", "devnos_used"]);
    says("udm info -c -S 'name>a'", &["for strings", "      ^"]);
    says("udm info -c -S 'nonsense=a'", &["\"nonsense\"", "devnos_used"]);
    says("udm create a/b --table '0 8 zero'", &["no \"/\" in it: got \"a/b\""]);
    says("udm message a x hello", &["the sector is \"x\""]);
    says("udm create x no-such.table", &["cannot read the table in", "no-such.table"]);
}

#[test]
fn nodes_as_names() {
    let (mut kernel, mut place, _dir) = empty();
    place.node_dir = "/run/udm/dev".into();
    check(&mut kernel, &place, "udm create 'a b' --table '0 8 zero'", 0, "");
    for path in ["'/dev/mapper/a\\x20b'", "'mapper/a\\x20b'", "'/run/udm/dev/a\\x20b'", "/dev/dm-0"] {
        check(&mut kernel, &place, &format!("udm table {path}"), 0, "0 8 zero \n");
    }
    for path in ["/dev/dm-1", "/dev/a", "/tmp/dm-0", "x/y/z", "/"] {
        check(&mut kernel, &place, &format!("udm table {path}"), 1, "");
    }
    check(&mut kernel, &place, "udm ls --exec echo", 0, "/run/udm/dev/a b\n");
}

/// Answers every ioctl with the same error.
struct Refusing(IoctlError, u32);

impl DmTransport for Refusing {
    fn ioctl(&mut self, _: u32, _: &mut Vec<u8>) -> Result<(), IoctlError> {
        self.1 += 1;
        Err(self.0.clone())
    }
}

impl World for Refusing {
    fn hold(&mut self, _: &str) {}
    fn release(&mut self, _: &str) {}
    fn node(&mut self, _: &str) -> Option<String> {
        None
    }
}

#[test]
fn what_the_daemon_knows_better() {
    let (_, place, _dir) = empty();
    let detail = "line 1: argument 2: expected a number, got \"x\"\n  0 8 linear /dev/nul0 x\n                       ^";
    let mut world = Refusing(IoctlError::new(Errno::EINVAL, detail), 0);
    let outcome = run(&mut world, &place, "udm load a --table '0 8 linear /dev/nul0 x'", "");
    assert_eq!(outcome.code, 1);
    assert_eq!(outcome.stderr, format!("udm: cannot load a table for a: Invalid argument\n{detail}\n"));
    // `remove --retry` asks 25 times, and only while the device is busy.
    for (errno, retry, count) in [(Errno::EBUSY, " --retry", 25), (Errno::EBUSY, "", 1), (Errno::ENXIO, " --retry", 1)]
    {
        let mut world = Refusing(IoctlError::new(errno, ""), 0);
        assert_eq!(run(&mut world, &place, &format!("udm remove a{retry}"), "").code, 1);
        assert_eq!(world.1, count, "{errno:?}{retry}");
    }
    // As dmsetup, --version and --help do not fail.
    let mut world = Refusing(IoctlError::new(Errno::ECONNREFUSED, "no connection to the daemon"), 0);
    let outcome = run(&mut world, &place, "udm --version", "");
    assert_eq!((outcome.code, outcome.stdout.as_str()), (0, "Library version:   1.02.185 (2022-05-18)\n"));
    assert_eq!(run(&mut world, &place, "udm version", "").code, 1);
}

/// Answers every ioctl with the same bytes.
struct Babbling(Vec<u8>);

impl DmTransport for Babbling {
    fn ioctl(&mut self, _: u32, buf: &mut Vec<u8>) -> Result<(), IoctlError> {
        buf.clone_from(&self.0);
        Ok(())
    }
}

impl World for Babbling {
    fn hold(&mut self, _: &str) {}
    fn release(&mut self, _: &str) {}
    fn node(&mut self, _: &str) -> Option<String> {
        None
    }
}

#[test]
fn a_result_that_never_fits() {
    let (_, place, _dir) = empty();
    let mut bytes = vec![0; 312];
    bytes[28..32].copy_from_slice(&0x100u32.to_ne_bytes());
    let mut world = Babbling(bytes);
    let outcome = run(&mut world, &place, "udm table a", "");
    assert_eq!(outcome.code, 1);
    assert!(outcome.stderr.contains("more than 16 MiB"), "{}", outcome.stderr);
    // Where there is no data, the flag means nothing.
    assert_eq!(run(&mut world, &place, "udm info a", "").code, 0);
}

const COMMANDS: [&str; 16] = [
    "info",
    "info a",
    "info -c",
    "info -c -o name,blkdevname,devs_used",
    "table",
    "table a",
    "status",
    "deps a",
    "ls",
    "ls --tree",
    "ls --json",
    "targets",
    "target-version x",
    "message a 0 b",
    "version",
    "wait a 1",
];

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig { cases: 64, failure_persistence: None, ..Default::default() })]

    #[test]
    fn any_answer_is_survived(
        flags in proptest::prelude::any::<u32>(),
        command in 0..COMMANDS.len(),
        mut bytes in proptest::collection::vec(proptest::prop_oneof![3 => proptest::prelude::Just(0u8), 1 => proptest::prelude::any::<u8>()], 0..800),
    ) {
        if bytes.len() >= 32 {
            bytes[16..20].copy_from_slice(&312u32.to_ne_bytes());
            // A full buffer is another test's: it asks again and again.
            bytes[28..32].copy_from_slice(&(flags & !0x100).to_ne_bytes());
        }
        let (_, place, _dir) = empty();
        let outcome = run(&mut Babbling(bytes), &place, &format!("udm {}", COMMANDS[command]), "");
        proptest::prop_assert!(outcome.code == 0 || !outcome.stderr.is_empty());
    }

    #[test]
    fn any_words_are_survived(words in "((info|create|ls|table|splitname|-[a-zA-Z]|--[a-z]{1,6}|[=',a-z0-9;\\\\:+. /-]{0,6}) ){0,6}") {
        let (mut kernel, place, _dir) = empty();
        // `--count 0` and `--interval` run until they are interrupted.
        proptest::prop_assume!(!words.contains("--c") && !words.contains("--i"));
        let outcome = run(&mut kernel, &place, &format!("udm {words}"), "");
        proptest::prop_assert!(outcome.code == 0 || outcome.code == 1);
    }
}

/// What needs no kernel, beside the program itself.
#[test]
fn beside_the_real_dmsetup() {
    let real = |args: &[String]| std::process::Command::new("dmsetup").args(args).env("LC_ALL", "C").output();
    match real(&["--version".into()]) {
        Ok(output) if String::from_utf8_lossy(&output.stdout).contains("1.02.185") => {}
        Ok(_) => return println!("SKIP dmsetup is not 1.02.185"),
        Err(e) => return println!("SKIP dmsetup cannot be run: {e}"),
    }
    let (mut kernel, place, _dir) = empty();
    for line in [
        "splitname vg-lv",
        "splitname a--x-b--y-c",
        "splitname a--x-b LVM -o all",
        "splitname vg-lv CRYPT -o+subsystem",
        "splitname vg- --noheadings",
        "splitname --nameprefixes vg-lv-l",
        "splitname --nameprefixes --unquoted --rows vg-lv",
        "splitname --rows --separator , vg-lv",
        "splitname --nameprefixes --noheadings -o vg_name,lv_name vg-lv",
        "splitname vg-lv -S vg_name=vg",
        "splitname vg-lv -S 'vg_name=x || lv_name=~^l'",
        "splitname vg-lv -S vg_name=x",
        "splitname vg-lv -o vg_name,selected -S vg_name=x",
        "splitname vg-lv -o vg_name -O -lv_name",
        "splitname vg-lv -o nonsense",
        "splitname vg-lv -o splitname_all",
        "splitname vg-lv -o help",
        "splitname vg-lv -S help",
        "splitname vg-lv -S 'vg_name>1'",
        "splitname vg-lv -S 'selected=1'",
        "splitname vg-lv --count 2 --interval 1",
        "splitname -c",
        "udevflags 0x410000",
        "udevflags 0xffff0000",
        "udevflags 0",
        "udevflags x",
        "help",
        "help -c",
        "--help",
        "nonsense",
        "ls --nonsense",
        "create",
        "create a --table x",
        "load",
        "rename",
        "info --manglename wrong",
    ] {
        let args = golden::words(line);
        let theirs = real(&args).unwrap();
        let ours = run(&mut kernel, &place, &format!("dmsetup {line}"), "");
        assert_eq!(ours.stdout, String::from_utf8_lossy(&theirs.stdout), "{line}\n{}", ours.stderr);
        assert_eq!(Some(ours.code), theirs.status.code(), "{line}\n{}", ours.stderr);
    }
}
