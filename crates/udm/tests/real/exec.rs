//! `udm exec`: Debian's dmsetup, file systems and shells on a daemon of udm, as if the kernel had device mapper.

use crate::programs::{installed, installed_as};
use crate::udm::{Printed, Udm, wait_until};
use rustix::process::{Signal, kill_process};
use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdin, Command, Stdio};

/// The code of `udm exec` when it cannot run anything.
const FAILED: i32 = 125;

/// A udm within which something can be run; `None` where that cannot be, which has been said then.
fn exec() -> Option<Udm> {
    let udm = Udm::new();
    if !installed("dmsetup") {
        return None;
    }
    let tried = udm.run(&["exec", "--", "dmsetup", "version"]);
    if tried.code == FAILED {
        println!("SKIP udm exec: {}", tried.stderr.trim());
        return None;
    }
    let made = sh(&udm, "dmsetup create probe --notable && dmsetup remove probe");
    if made.code != 0 {
        println!("SKIP udm exec: no loop device can be set up here");
        return None;
    }
    Some(udm)
}

fn sh(udm: &Udm, script: &str) -> Printed {
    // A program that waits for ever is to fail its test, and not to hold all others up.
    udm.run(&["exec", "--", "timeout", "--foreground", "-k", "5", "60", "sh", "-c", script])
}

/// Runs a script that must succeed. What it printed, both streams.
#[track_caller]
fn ok(udm: &Udm, script: &str) -> String {
    let Printed { code, stdout, stderr } = sh(udm, script);
    assert_eq!(code, 0, "{script}\n{stdout}{stderr}");
    stdout + &stderr
}

/// Runs a script that must fail and say so.
#[track_caller]
fn fails(udm: &Udm, script: &str, expect: &str) {
    let Printed { code, stdout, stderr } = sh(udm, script);
    assert!(code != 0 && stderr.contains(expect), "{script} ends with {code}\n{stdout}{stderr}");
}

/// A shell within that stays.
struct Shell {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<std::process::ChildStdout>,
}

impl Shell {
    fn start(udm: &Udm) -> Self {
        let mut command = udm.command();
        command
            .args(["exec", "--", "timeout", "--foreground", "-k", "5", "120", "sh"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut child = command.spawn().expect("udm can be run");
        let (stdin, stdout) = (child.stdin.take().expect("piped"), child.stdout.take().expect("piped"));
        Self { child, stdin, stdout: BufReader::new(stdout) }
    }

    /// Has it run something, whose output is one line.
    fn line(&mut self, script: &str) -> String {
        use std::io::Write;
        writeln!(self.stdin, "{script}").expect("the shell reads");
        let mut line = String::new();
        self.stdout.read_line(&mut line).expect("the shell prints");
        line.trim().to_owned()
    }

    fn end(mut self) {
        drop(self.stdin);
        self.child.wait().expect("the shell ends");
    }
}

#[test]
fn codes_and_streams_are_the_programs() {
    let Some(udm) = exec() else { return };
    assert_eq!(sh(&udm, "exit 7").code, 7);
    assert_eq!(udm.run(&["exec", "--", "true"]).code, 0);
    let missing = udm.run(&["exec", "--", "no-such-program"]);
    assert_eq!(missing.code, 127, "{}", missing.stderr);
    assert!(missing.stderr.contains("no-such-program"), "{}", missing.stderr);
    assert_eq!(udm.run(&["exec", "--", "/etc/passwd"]).code, 126);
    let printed = sh(&udm, "echo out; echo err >&2; pwd; echo $UDM_EXEC");
    assert_eq!(printed.stderr, "err\n");
    assert!(printed.stdout.starts_with("out\n"), "{}", printed.stdout);
    // A signal that ends the program ends udm: its parent sees the same.
    let status = udm.command().args(["exec", "--", "sh", "-c", "kill -TERM $$"]).status().expect("udm can be run");
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(15));
    let mut child = udm.command().args(["exec", "--", "sleep", "1000"]).spawn().expect("udm can be run");
    let pid = rustix::process::Pid::from_child(&child);
    wait_until("it sleeps", || {
        let children = std::fs::read_to_string(format!("/proc/{0}/task/{0}/children", child.id())).unwrap_or_default();
        let name = |pid: &str| std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        children.split_whitespace().any(|pid| name(pid) == "sleep\n")
    });
    kill_process(pid, Signal::TERM).expect("it lives");
    let status = child.wait().expect("it ends");
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(15), "what is sent to udm is passed on");
}

#[test]
fn devices_are_block_devices_of_the_host() {
    let Some(udm) = exec() else { return };
    ok(&udm, "dmsetup create a --table '0 65536 ram' && dmsetup create b --table '0 4096 linear /dev/mapper/a 8'");
    let number = ok(&udm, "stat -L -c %Hr:%Lr /dev/mapper/a");
    let number = number.trim();
    assert!(number.starts_with("7:"), "{number}");
    assert_eq!(ok(&udm, "dmsetup table b"), format!("0 4096 linear {number} 8\n"));
    assert_eq!(
        ok(&udm, "dmsetup deps -o devno b").trim(),
        format!("1 dependencies\t: ({})", number.replace(':', ", "))
    );
    assert_eq!(udm.ok(&["table", "b"]), "0 4096 linear 600:0 8\n", "who knows that it is udm sees udm's");
    let minor = number.strip_prefix("7:").expect("checked");
    assert_eq!(ok(&udm, &format!("dmsetup info -c --noheadings -o name -j 7 -m {minor}")), "a\n");
    assert_eq!(ok(&udm, "blockdev --getsz /dev/mapper/b"), "4096\n");
    assert_eq!(ok(&udm, "dmsetup info -c --noheadings -o open a"), "1\n", "a table; not the node");
    assert_eq!(ok(&udm, "dmsetup info -c --noheadings -o open b"), "0\n");
    fails(&udm, "dmsetup remove a", "Device or resource busy");
    assert_eq!(ok(&udm, "stat -L -c %Hr:%Lr /dev/mapper/a").trim(), number, "a removal that fails changes nothing");
    ok(&udm, "exec 7</dev/mapper/b; test $(dmsetup info -c --noheadings -o open b) = 1");
    fails(&udm, "exec 7</dev/mapper/b; dmsetup remove b", "Device or resource busy");
    ok(&udm, "dmsetup remove b && dmsetup remove a && test ! -e /dev/mapper/a");
    // A number that was in use is not given to the next.
    ok(&udm, "dmsetup create c --table '0 8 zero'");
    assert_ne!(ok(&udm, "stat -L -c %Hr:%Lr /dev/mapper/c").trim(), number);
    ok(&udm, "dmsetup remove c");
    ok(&udm, "dmsetup create d -j 7 -m 2345 --table '0 8 zero' && test $(stat -L -c %Lr /dev/mapper/d) = 2345");
    ok(&udm, "dmsetup remove d && dmsetup ls | grep -q 'No devices found'");
}

#[test]
fn tables_and_sizes_as_in_the_kernel() {
    let Some(udm) = exec() else { return };
    // LVM loads a whole tree before it resumes any of it.
    ok(&udm, "dmsetup create low --notable && dmsetup create high --table '0 64 linear /dev/mapper/low 0'");
    fails(&udm, "dd if=/dev/mapper/high of=/dev/null bs=512 count=1 iflag=direct", "rror");
    ok(&udm, "dmsetup load low --table '0 64 zero' && dmsetup resume low");
    ok(&udm, "dd if=/dev/mapper/high of=/dev/null bs=512 count=64 iflag=direct");
    // What lies beneath is too small for a reload at the resume, and not before.
    ok(&udm, "dmsetup load high --table '0 128 linear /dev/mapper/low 0'");
    fails(&udm, "dmsetup resume high", "Invalid argument");
    assert_eq!(ok(&udm, "dmsetup info -c --noheadings -o suspended,tables_loaded high"), "Suspended:Live\n");
    ok(&udm, "dmsetup resume high && dd if=/dev/mapper/high of=/dev/null bs=512 count=64 iflag=direct");
    ok(&udm, "dmsetup load high --table '0 128 linear /dev/mapper/low 0' && dmsetup load low --table '0 128 zero'");
    ok(&udm, "dmsetup resume low && dmsetup resume high && test $(blockdev --getsz /dev/mapper/high) = 128");
    ok(&udm, "dmsetup remove high low");
}

#[test]
fn a_suspension_freezes_what_is_mounted() {
    let Some(udm) = exec() else { return };
    if !installed_as("mkfs.ext4", "-V") {
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    let at = dir.path().display();
    ok(&udm, "dmsetup create fs --table '0 65536 ram' && mkfs.ext4 -q /dev/mapper/fs");
    ok(&udm, &format!("mount /dev/mapper/fs {at} && echo hello > {at}/file"));
    fails(&udm, "dmsetup remove fs", "Device or resource busy");
    // Another program in the same namespace sees the mount; the host does not.
    assert_eq!(ok(&udm, &format!("cat {at}/file")), "hello\n");
    assert!(!dir.path().join("file").exists());
    ok(&udm, "dmsetup suspend fs");
    let mut shell = Shell::start(&udm);
    assert_eq!(shell.line(&format!("(echo more > {at}/more; echo written) & echo begun")), "begun");
    let what = ok(&udm, &format!("dmsetup info -c --noheadings -o suspended fs; test -e {at}/more || echo frozen"));
    assert_eq!(what, "Suspended\nfrozen\n");
    ok(&udm, "dmsetup resume fs");
    assert_eq!(shell.line("wait"), "written");
    // Frozen by somebody else it stays so.
    if installed("fsfreeze") {
        ok(&udm, &format!("fsfreeze -f {at} && dmsetup suspend fs && dmsetup resume fs && fsfreeze -u {at}"));
    }
    // Not told with --nolockfs.
    ok(&udm, "dmsetup suspend --nolockfs fs && dmsetup resume fs");
    ok(&udm, "dmsetup remove --deferred fs");
    assert_eq!(ok(&udm, "dmsetup info -c --noheadings -o deferred_remove fs"), "deferred-remove\n");
    shell.end();
    ok(&udm, &format!("umount {at}"));
    wait_until("it goes at the last close", || sh(&udm, "dmsetup info fs").code != 0);
}

#[test]
fn loop_devices_that_programs_ask_for_are_there() {
    let Some(udm) = exec() else { return };
    let file = tempfile::NamedTempFile::new().expect("a file");
    file.as_file().set_len(1 << 20).expect("room");
    let file = file.path().display();
    let looped = ok(&udm, &format!("losetup --find --show {file}"));
    let looped = looped.trim();
    ok(&udm, &format!("dmsetup create over --table '0 2048 linear {looped} 0'"));
    let number = ok(&udm, &format!("stat -c %Hr:%Lr {looped}"));
    assert_eq!(ok(&udm, "dmsetup table over"), format!("0 2048 linear {} 0\n", number.trim()));
    // A program is told that it is device mapper's, so it may ask what it is.
    let (major, minor) = number.trim().split_once(':').expect("a number");
    let told = ok(&udm, &format!("dmsetup table -j {major} -m {minor}"));
    assert_eq!(told, "0 2048 linear 1:0 0\n");
    ok(&udm, &format!("dmsetup remove over && losetup -d {looped}"));
    let visible = ok(&udm, "for d in /dev/*; do test -b $d && echo $d; done; true");
    assert!(visible.lines().all(|device| device.starts_with("/dev/loop")), "the host's disks are not: {visible}");
}

#[test]
fn who_dies_is_followed_by_another() {
    let Some(udm) = exec() else { return };
    ok(&udm, "dmsetup create a --table '0 8 zero'");
    let mut shell = Shell::start(&udm);
    assert_eq!(shell.line("dmsetup table a"), "0 8 zero");
    let number = shell.line("stat -L -c %Lr /dev/mapper/a");
    udm.kill();
    assert_eq!(shell.line("dmsetup table a"), "0 8 zero", "another daemon is started, outside");
    assert_eq!(shell.line("stat -L -c %Lr /dev/mapper/a"), number, "with the number that it had");
    assert_eq!(shell.line("blockdev --getsz /dev/mapper/a"), "8");
    udm.ok(&["daemon", "--replace"]);
    assert_eq!(shell.line("dmsetup table a"), "0 8 zero");
    shell.end();
    ok(&udm, "dmsetup remove a");
}

#[test]
fn within_there_is_one_device_mapper() {
    let Some(udm) = exec() else { return };
    let program = env!("CARGO_BIN_EXE_udm");
    assert_eq!(ok(&udm, &format!("{program} exec -- echo nested")), "nested\n");
    fails(&udm, &format!("{program} --dir /tmp/another exec -- true"), "already");
    fails(&udm, &format!("{program} daemon"), "outside");
    fails(&udm, &format!("{program} daemon --replace"), "outside");
    // It knows its daemon, and that one is there.
    ok(&udm, &format!("{program} create a --table '0 8 zero' && dmsetup table a && {program} remove a"));
}

#[test]
fn requests_that_lie_are_refused() {
    let Some(udm) = exec() else { return };
    if !installed("python3") {
        return;
    }
    let script = include_str!("exec/lies.py");
    let Printed { code, stdout, stderr } = udm.run(&["exec", "--", "python3", "-c", script]);
    assert_eq!((code, &*stdout), (0, "all refused\n"), "{stderr}");
    ok(&udm, "dmsetup ls");
}

#[test]
fn events_are_polled_for() {
    let Some(udm) = exec() else { return };
    if !installed("python3") {
        return;
    }
    let Printed { code, stdout, stderr } = udm.run(&["exec", "--", "python3", "-c", include_str!("exec/poll.py")]);
    assert_eq!((code, &*stdout), (0, "polled\n"), "{stderr}");
}

#[test]
fn programs_without_the_right_to_are_refused() {
    let Some(udm) = exec() else { return };
    if !installed("setpriv") {
        return;
    }
    let as_other = "setpriv --reuid 65534 --regid 65534 --clear-groups";
    fails(&udm, &format!("{as_other} dmsetup ls"), "ermission denied");
    // One that had opened it before it gave up its rights.
    let script = "import os, fcntl\nfd = os.open('/dev/mapper/control', os.O_RDWR)\nos.setuid(65534)\n\
        try:\n fcntl.ioctl(fd, 0xc138fd00, bytearray(b'\\4\\0\\0\\0' + bytes(8) + (312).to_bytes(4, 'little') + bytes(296)))\n\
        except PermissionError: print('refused')";
    assert_eq!(udm.run(&["exec", "--", "python3", "-c", script]).stdout, "refused\n");
}

#[test]
fn many_at_once() {
    let Some(udm) = exec() else { return };
    let script = "for i in $(seq 8); do (dmsetup create n$1-$i --table '0 8 zero' && dmsetup remove n$1-$i) || exit 1 & done; wait";
    let children: Vec<Child> = (0..4)
        .map(|n| {
            let mut command: Command = udm.command();
            command.args(["exec", "--", "sh", "-c", script, "sh", &n.to_string()]);
            command.spawn().expect("udm can be run")
        })
        .collect();
    for mut child in children {
        assert!(child.wait().expect("it ends").success());
    }
    ok(&udm, "dmsetup ls | grep -q 'No devices found'");
}
