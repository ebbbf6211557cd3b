//! How daemons begin and end.

use crate::common::{NbdHold, Place, stderr, stdout, until};
use rustix::event::{PollFd, PollFlags};
use rustix::process::Signal;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::process::Stdio;

fn mode(path: &std::path::Path) -> u32 {
    std::fs::metadata(path).unwrap().mode() & 0o7777
}

/// Nor does it take the room that the state needs.
#[test]
fn a_log_does_not_grow_for_ever() {
    let place = Place::new();
    place.zero("v");
    let log = place.dir().join("log");
    for round in 0..2 {
        // As of a daemon that has been there for long.
        let mut file = std::fs::OpenOptions::new().append(true).open(&log).unwrap();
        std::io::Write::write_all(&mut file, &vec![b'x'; 5 << 20]).unwrap();
        place.ok("suspend v");
        place.ok("resume v");
        let now = place.log();
        assert!(now.len() < 1 << 20 && now.contains("DM_DEV_SUSPEND v"), "{} bytes in round {round}", now.len());
    }
    let pid = place.daemon_pid().unwrap();
    for output in [1, 2] {
        assert_eq!(std::fs::read_link(format!("/proc/{pid}/fd/{output}")).unwrap(), log.canonicalize().unwrap());
    }
}

#[test]
fn a_client_starts_the_daemon() {
    let place = Place::new();
    assert!(!place.is_served());
    assert_eq!(place.ok("ls"), "No devices found\n");
    let pid = place.daemon_pid();
    assert!(place.is_served());
    assert_eq!(mode(&place.dir()), 0o700);
    for name in ["control.sock", "udm.sock", "nbd.sock", "state.json", "log", "lock"] {
        assert_eq!(mode(&place.dir().join(name)), 0o600, "{name}");
    }
    place.zero("vol");
    assert_eq!(place.ok("ls"), "vol\t(600:0)\n");
    assert_eq!(place.daemon_pid(), pid, "one daemon for all commands");
}

#[test]
fn clients_that_start_it_at_once() {
    let place = Place::new();
    let clients: Vec<_> = (0..8)
        .map(|_| {
            let mut command = place.command("udm");
            command.arg("ls").stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
        })
        .collect();
    for client in clients {
        let output = client.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
    }
    assert_eq!(place.log().matches(" serves ").count(), 1, "{}", place.log());
}

/// A daemon that is killed takes the connections with it that it had not accepted yet. Nobody has read what they asked
/// for, so they ask the next one.
#[test]
fn clients_that_were_not_accepted() {
    for (socket, line) in [("control.sock", "ls"), ("udm.sock", "daemon --status"), ("udm.sock", "daemon --replace")] {
        let place = Place::new();
        std::fs::create_dir_all(place.dir()).unwrap();
        std::fs::set_permissions(place.dir(), std::fs::Permissions::from_mode(0o700)).unwrap();
        let dying = UnixListener::bind(place.dir().join(socket)).unwrap();
        let mut command = place.command("udm");
        let client = command.args(line.split(' ')).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut waiting = [PollFd::new(&dying, PollFlags::IN)];
        rustix::event::poll(&mut waiting, None).unwrap();
        drop(dying);
        let output = client.wait_with_output().unwrap();
        let told = (output.status.code(), stdout(&output), stderr(&output));
        let expect = match line {
            "ls" => (Some(0), "No devices found\n".to_owned(), String::new()),
            "daemon --replace" => (Some(0), String::new(), String::new()),
            _ => (Some(1), format!("no daemon runs in {}\n", place.dir().display()), String::new()),
        };
        assert_eq!(told, expect, "{line}");
    }
}

#[test]
fn a_daemon_that_cannot_start_says_why() {
    let place = Place::new();
    std::fs::create_dir_all(place.dir().join("nbd.sock")).unwrap();
    std::fs::set_permissions(place.dir(), std::fs::Permissions::from_mode(0o700)).unwrap();
    let output = place.udm(["ls"]);
    assert!(!output.status.success());
    let told = stderr(&output);
    assert!(told.contains("the daemon did not start") && told.contains("nbd.sock"), "{told}");
}

#[test]
fn directories_that_are_refused() {
    let place = Place::new();
    std::fs::create_dir(place.dir()).unwrap();
    std::fs::set_permissions(place.dir(), std::fs::Permissions::from_mode(0o777)).unwrap();
    let output = place.udm(["daemon"]);
    assert!(stderr(&output).contains("others may write to"), "{}", stderr(&output));
    let long = format!("/tmp/{}", "x".repeat(110));
    let output = place.udm(["--dir", &long, "ls"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("too long a path for a socket"), "{}", stderr(&output));
    let output = place.command("udm").env_remove("UDM_DIR").env("XDG_RUNTIME_DIR", place.root()).arg("ls").output();
    assert!(output.unwrap().status.success());
    assert!(place.root().join("udm/control.sock").exists());
    let stop = place
        .command("udm")
        .env_remove("UDM_DIR")
        .env("XDG_RUNTIME_DIR", place.root())
        .args(["daemon", "--stop"])
        .output();
    assert!(stop.unwrap().status.success());
}

#[test]
fn sigterm_ends_it_in_order() {
    for signal in [Signal::TERM, Signal::INT] {
        let place = Place::new();
        let file = place.root().join("disk");
        std::fs::File::create(&file).and_then(|f| f.set_len(1 << 20)).unwrap();
        let table = format!("0 2048 linear {} 0", file.display());
        assert!(place.udm(["create", "vol", "--table", &table]).status.success());
        let _hold = NbdHold::open(&place.dir().join("nbd.sock"), "vol").unwrap();
        place.signal(signal);
        until("it ends", || !place.is_served());
        let mut left: Vec<_> =
            std::fs::read_dir(place.dir()).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        left.sort();
        assert_eq!(left, ["lock", "log", "state.json"], "nothing but the sockets goes");
        assert!(place.log().contains("ended"), "{}", place.log());
        let state = std::fs::read_to_string(place.dir().join("state.json")).unwrap();
        assert!(state.contains(&table), "{state}");
    }
}

#[test]
fn after_sigkill_the_next_one_starts() {
    let place = Place::new();
    place.zero("vol");
    place.signal(Signal::KILL);
    until("it is gone", || !place.is_served());
    assert!(place.dir().join("control.sock").exists(), "a killed daemon leaves its sockets");
    assert_eq!(place.ok("ls"), "vol\t(600:0)\n");
    assert!(NbdHold::open(&place.dir().join("nbd.sock"), "vol").is_ok());
}

#[test]
fn a_second_daemon_is_refused() {
    let place = Place::new();
    place.ok("ls");
    let output = place.udm(["daemon"]);
    assert_eq!(output.status.code(), Some(3));
    let holder = format!("process id {}", place.daemon_pid().unwrap());
    assert!(stderr(&output).contains(&holder), "{} lacks {holder}", stderr(&output));
    assert!(place.is_served());
}

#[test]
fn it_ends_with_its_directory() {
    let place = Place::new();
    place.zero("vol");
    let lock = std::fs::File::open(place.dir().join("lock")).unwrap();
    std::fs::remove_dir_all(place.dir()).unwrap();
    // The lock's file is gone from the directory, but not the lock.
    until("it ends", || rustix::fs::flock(&lock, rustix::fs::FlockOperation::NonBlockingLockShared).is_ok());
    assert!(!place.dir().exists(), "it does not come back");
}

#[test]
fn stopping() {
    let place = Place::new();
    assert!(place.ok("daemon --stop").contains("no daemon runs"));
    place.zero("vol");
    let status = place.ok("daemon --status");
    assert!(status.contains("with 1 devices") && status.contains("log: "), "{status}");
    assert_eq!(place.ok("daemon --stop"), "");
    assert!(!place.is_served());
    assert_eq!(place.udm(["daemon", "--status"]).status.code(), Some(1));
}

/// Who was waiting to be served when the daemon was told to end is told so, and starts no other.
#[test]
fn stopping_with_commands_queued() {
    let place = Place::new();
    place.zero("vol");
    let connected = |name: &str| {
        let path = place.dir().join(name).display().to_string();
        std::fs::read_to_string("/proc/net/unix").unwrap().lines().filter(|line| line.ends_with(&path)).count()
    };
    place.signal(Signal::STOP);
    // Each thread stops when it next looks: until then it may serve one of those that are to be kept waiting.
    let tasks = format!("/proc/{}/task", place.daemon_pid().unwrap());
    until("it stands still", || {
        let stats = std::fs::read_dir(&tasks).unwrap().map(|task| task.unwrap().path().join("stat"));
        stats.map(std::fs::read_to_string).all(|stat| stat.is_ok_and(|text| text.contains(") T ")))
    });
    let mut idle = std::os::unix::net::UnixStream::connect(place.dir().join("control.sock")).unwrap();
    let mut queued = Vec::new();
    for (line, socket) in [("ls", "control.sock"), ("create other --notable", "control.sock"), ("export", "udm.sock")] {
        let before = connected(socket);
        let mut command = place.command("udm");
        let child = command.args(line.split(' ')).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        until(&format!("{line} is queued"), || connected(socket) > before);
        queued.push((line, child));
    }
    place.signal(Signal::TERM);
    place.signal(Signal::CONT);
    for (line, child) in queued {
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{line}: {}", stdout(&output));
        assert!(stderr(&output).contains("is being stopped"), "{line}: {}", stderr(&output));
    }
    until("it has ended", || !place.is_served());
    let mut told = Vec::new();
    std::io::Read::read_to_end(&mut idle, &mut told).unwrap();
    assert!(String::from_utf8_lossy(&told).contains("is being stopped"), "{told:?}");
    assert!(!place.dir().join("control.sock").exists(), "no other was started");
    assert_eq!(place.ok("ls"), "vol\t(600:0)\n", "a command that comes afterwards may");
}

#[test]
fn two_directories_are_two_worlds() {
    let (one, other) = (Place::new(), Place::new());
    one.zero("vol");
    assert_eq!(other.ok("ls"), "No devices found\n");
    let dir = one.dir().display().to_string();
    assert_eq!(other.ok(&format!("--dir {dir} ls")), "vol\t(600:0)\n", "an option goes before the environment");
}

#[test]
fn a_foreground_daemon() {
    let place = Place::new();
    let mut daemon = place.command("udm").arg("daemon").stderr(Stdio::null()).spawn().unwrap();
    until("it answers", || std::os::unix::net::UnixStream::connect(place.dir().join("control.sock")).is_ok());
    assert_eq!(place.daemon_pid(), Some(daemon.id()));
    place.zero("vol");
    assert_eq!(place.ok("daemon --stop"), "");
    assert!(daemon.wait().unwrap().success());
}

#[test]
fn the_program_by_its_other_names() {
    let place = Place::new();
    place.zero("vol");
    let run = |program: &str, words: &[&str]| place.command(program).args(words).output().unwrap();
    assert_eq!(stdout(&run("dmsetup", &["ls"])), "vol\t(600:0)\n");
    assert_eq!(stdout(&run("devmap_name", &["600", "0"])), "vol\n");
    assert!(!run("dmsetup", &["daemon", "--status"]).status.success(), "dmsetup has no commands but its own");
    assert!(stdout(&run("udm", &["--help"])).contains("all of dmsetup's"));
}

/// The daemon ignores SIGPIPE, however it is started; commands end by it, as others do.
#[test]
fn broken_pipes() {
    use std::os::unix::process::ExitStatusExt;
    const SIGPIPE: i32 = 13;
    let place = Place::new();
    let ignores = |pid: u32| {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap().trim();
        u64::from_str_radix(mask, 16).unwrap() & 1 << (SIGPIPE - 1) != 0
    };
    place.ok("ls");
    assert!(ignores(place.daemon_pid().unwrap()), "one that a client has started");
    let other = Place::new();
    let dir = other.dir();
    let mut daemon = place.command("udm").arg("--dir").arg(&dir).arg("daemon").stderr(Stdio::null()).spawn().unwrap();
    until("it answers", || std::os::unix::net::UnixStream::connect(dir.join("control.sock")).is_ok());
    assert!(ignores(daemon.id()), "one in the foreground");
    other.ok("daemon --stop");
    daemon.wait().unwrap();
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    assert_eq!(place.command("udm").arg("ls").stdout(writer).status().unwrap().signal(), Some(SIGPIPE));
}

/// A script's pipe is not kept open by the daemon that one of its commands has started.
#[test]
fn descriptors_of_the_caller() {
    let place = Place::new();
    let (mut reader, writer) = std::io::pipe().unwrap();
    // A shell hands its descriptor 7 down.
    let script = format!("exec 7>&1; {} ls >/dev/null; echo done >&7", crate::common::UDM);
    let mut shell = std::process::Command::new("sh");
    shell.args(["-c", &script]).env("UDM_DIR", place.dir()).stdout(writer);
    assert!(shell.status().unwrap().success());
    // The writing end that this process has goes with the command.
    drop(shell);
    let mut text = String::new();
    std::io::Read::read_to_string(&mut reader, &mut text).unwrap();
    assert_eq!(text, "done\n");
    assert!(place.is_served());
}
