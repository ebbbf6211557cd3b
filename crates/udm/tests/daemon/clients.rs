//! What clients can do to a daemon: use it, break the protocol, vanish.

use crate::common::{NbdHold, Place, stderr, stdout, until};
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::Stdio;

const MAGIC: &[u8] = b"UDMC";

/// A hello for the directory `/`.
fn hello() -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    bytes.extend(1u16.to_ne_bytes());
    bytes.extend([0; 2]);
    bytes.extend(1u32.to_ne_bytes());
    bytes.extend([0; 4]);
    bytes.push(b'/');
    bytes
}

fn request(command: u32, claimed: u32, body: &[u8]) -> Vec<u8> {
    let mut bytes = command.to_ne_bytes().to_vec();
    bytes.extend(claimed.to_ne_bytes());
    bytes.extend(body);
    bytes
}

/// Sends bytes, hangs up for writing, and returns the error number and the text of the answer, if there is one.
fn send(place: &Place, bytes: &[u8]) -> Option<(i32, String)> {
    let mut stream = UnixStream::connect(place.dir().join("control.sock")).unwrap();
    let _ = stream.write_all(bytes);
    let _ = stream.shutdown(std::net::Shutdown::Write);
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    let word = |at: usize| Some(u32::from_ne_bytes(answer.get(at..at + 4)?.try_into().ok()?));
    let (errno, len, detail) = (word(0)?, word(4)? as usize, word(8)? as usize);
    Some((errno as i32, String::from_utf8_lossy(&answer[16 + len..16 + len + detail]).into_owned()))
}

#[test]
fn broken_ioctls() {
    const DM_VERSION: u32 = 0xc138_fd00;
    const DM_DEV_STATUS: u32 = 0xc138_fd07;
    let place = Place::new();
    place.zero("vol");
    let check = |bytes: &[u8], expect: Option<(i32, &str)>| {
        let got = send(&place, bytes);
        match (&got, expect) {
            (None, None) => {}
            (Some((errno, detail)), Some((code, text))) if *errno == code && detail.contains(text) => {}
            _ => panic!("{got:?}, expected {expect:?}"),
        }
    };
    let after_hello = |rest: &[u8]| [&hello()[..], rest].concat();
    // A header of this version that claims `size` bytes.
    let header = |size: u32| {
        let mut bytes = vec![0; 312];
        for (at, value) in [(0, 4u32), (4, 48), (12, size), (16, 312)] {
            bytes[at..at + 4].copy_from_slice(&value.to_ne_bytes());
        }
        bytes
    };
    check(&[], None);
    check(b"UD", None);
    check(&after_hello(&[1, 2, 3]), None);
    check(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", Some((71, "the hello begins with")));
    check(&after_hello(&request(DM_VERSION, 100, &[0; 10])), None);
    check(&after_hello(&request(DM_VERSION, u32::MAX, &[])), Some((71, "the request claims 4294967295 bytes")));
    check(&after_hello(&request(DM_VERSION, 0, &[])), Some((22, "at least 305 bytes")));
    check(&after_hello(&request(DM_DEV_STATUS, 304, &[0; 304])), Some((22, "at least 305 bytes")));
    check(&after_hello(&request(DM_DEV_STATUS, 312, &header(400))), Some((22, "data_size is 400")));
    check(&after_hello(&request(DM_DEV_STATUS, 312, &header(312))), Some((6, "no device is named")));
    check(&after_hello(&request(0xc138_fd63, 312, &header(312))), Some((25, "unknown command")));
    check(&after_hello(&request(DM_VERSION, 312, &header(312))), Some((0, "")));
    assert_eq!(place.ok("ls"), "vol\t(600:0)\n", "the others notice nothing");
}

#[test]
fn broken_requests_on_the_second_socket() {
    let place = Place::new();
    place.zero("vol");
    let talk = |bytes: &[u8]| {
        let mut stream = UnixStream::connect(place.dir().join("udm.sock")).unwrap();
        let _ = stream.write_all(bytes);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let mut answer = String::new();
        let _ = stream.read_to_string(&mut answer);
        answer
    };
    assert_eq!(talk(b""), "");
    assert_eq!(talk(b"{\"op\":"), "");
    assert!(talk(b"\xff\n").contains("not UTF-8"));
    assert!(talk(b"{\"op\":\"shutdown\"}\n").contains("before any other request"));
    // Longer than any line may be; the daemon stops reading, which a writer may see as a broken pipe.
    let long = vec![b'x'; 5 << 20];
    let answer = talk(&long);
    assert!(answer.is_empty() || answer.contains("more than"), "{answer}");
    assert_eq!(place.ok("ls"), "vol\t(600:0)\n");
}

fn is_waiting(place: &Place) -> bool {
    let status = place.ok("daemon --status");
    status.lines().any(|line| line.starts_with("under way") && line.ends_with("DM_DEV_WAIT vol"))
}

#[test]
fn a_client_that_vanishes_while_it_waits() {
    let place = Place::new();
    place.zero("vol");
    let mut waiter = place.command("udm").args(["wait", "vol"]).stdout(Stdio::null()).spawn().unwrap();
    until("the wait is under way", || is_waiting(&place));
    waiter.kill().unwrap();
    waiter.wait().unwrap();
    until("the wait has ended", || !is_waiting(&place));
    assert_eq!(place.ok("remove vol"), "");
}

#[test]
fn a_wait_ends_with_the_daemon() {
    let place = Place::new();
    place.zero("vol");
    let waiter = place.command("udm").args(["wait", "vol"]).stderr(Stdio::piped()).spawn().unwrap();
    until("the wait is under way", || is_waiting(&place));
    assert_eq!(place.ok("daemon --stop"), "");
    assert_eq!(waiter.wait_with_output().unwrap().status.code(), Some(1));
}

/// A number of `/proc/PID/status`.
fn status_of(place: &Place, key: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", place.daemon_pid().unwrap())).unwrap();
    let value = status.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':')).unwrap();
    value.split_whitespace().next().unwrap().parse().unwrap()
}

/// Lets this process open as many files as the system lets it; whether that is enough.
fn can_open(files: u64) -> bool {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit).unwrap();
    limit.maximum.is_none_or(|most| most >= files)
}

/// Who is idle costs no thread, and control goes on, also beyond the number of clients that the daemon has at a time.
#[test]
fn many_idle_clients() {
    if !can_open(5000) {
        return println!("SKIP idle clients: this process may not open 5000 files");
    }
    let place = Place::new();
    place.zero("vol");
    let connect = |name: &str| UnixStream::connect(place.dir().join(name)).unwrap();
    let (memory, threads) = (status_of(&place, "VmRSS"), status_of(&place, "Threads"));
    let mut idle: Vec<_> = (0..1000).flat_map(|_| ["control.sock", "udm.sock"].map(connect)).collect();
    assert_eq!(place.ok("ls"), "vol\t(600:0)\n");
    let (memory_now, threads_now) = (status_of(&place, "VmRSS"), status_of(&place, "Threads"));
    assert!(memory_now <= memory + (32 << 10), "{memory_now} KiB, {memory} before");
    assert!(threads_now <= threads + 4, "{threads_now} threads, {threads} before");
    idle.extend((0..1400).flat_map(|_| ["control.sock", "udm.sock"].map(connect)));
    assert_eq!(place.ok("ls"), "vol\t(600:0)\n");
    assert!(place.ok("daemon --status").contains("with 1 devices"));
    // Those that were there first have been hung up on.
    assert_eq!(idle[0].read(&mut [0]).unwrap(), 0);
    assert_eq!(place.ok("daemon --stop"), "");
    drop(idle);
}

/// A request that has come only in part holds nobody up, and is done when the rest comes: by the next daemon, if need
/// be.
#[test]
fn half_requests() {
    const DM_VERSION: u32 = 0xc138_fd00;
    let place = Place::new();
    place.zero("vol");
    let threads = status_of(&place, "Threads");
    let mut header = vec![0; 312];
    for (at, value) in [(0, 4u32), (4, 48), (12, 312), (16, 312)] {
        header[at..at + 4].copy_from_slice(&value.to_ne_bytes());
    }
    let whole = [hello(), request(DM_VERSION, 312, &header)].concat();
    let line = b"{\"op\":\"hello\",\"version\":1}\n";
    let mut halves = Vec::new();
    for cut in [1, 15, 16, 17, 20, 25, 26, 300, whole.len() - 1] {
        let mut stream = UnixStream::connect(place.dir().join("control.sock")).unwrap();
        stream.write_all(&whole[..cut]).unwrap();
        halves.push((stream, whole[cut..].to_vec()));
    }
    let mut second = UnixStream::connect(place.dir().join("udm.sock")).unwrap();
    second.write_all(&line[..9]).unwrap();
    assert_eq!(place.ok("ls"), "vol\t(600:0)\n");
    assert!(status_of(&place, "Threads") <= threads + 4);
    let replaced = place.udm(["daemon", "--replace"]);
    assert!(replaced.status.success(), "{}", stderr(&replaced));
    for (mut stream, rest) in halves {
        stream.write_all(&rest).unwrap();
        let mut answer = [0; 16];
        stream.read_exact(&mut answer).unwrap();
        assert_eq!(answer[..4], [0; 4], "{} bytes came later", rest.len());
    }
    second.write_all(&line[9..]).unwrap();
    let mut answer = [0; 6];
    second.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"{\"ok\":");
}

/// Who does not take an answer keeps nobody from replacing the daemon, and gets the rest from the next one.
#[test]
fn answers_that_are_not_taken() {
    const DM_TABLE_STATUS: u32 = 0xc138_fd0c;
    let place = Place::new();
    place.zero("vol");
    // More than a socket has room for.
    let table: String = (0..20_000).map(|line| format!("{} 8 zero\n", line * 8)).collect();
    let file = place.root().join("table");
    std::fs::write(&file, table).unwrap();
    place.ok(&format!("create long {}", file.display()));
    let mut header = vec![0; 4 << 20];
    for (at, value) in [(0, 4u32), (4, 48), (12, 4 << 20), (16, 312)] {
        header[at..at + 4].copy_from_slice(&value.to_ne_bytes());
    }
    header[48..52].copy_from_slice(b"long");
    let whole = [hello(), request(DM_TABLE_STATUS, 4 << 20, &header)].concat();
    let mut stream = UnixStream::connect(place.dir().join("control.sock")).unwrap();
    stream.write_all(&whole).unwrap();
    let mut head = [0; 16];
    stream.read_exact(&mut head).unwrap();
    let before = place.daemon_pid();
    let replaced = place.udm(["daemon", "--replace"]);
    assert!(replaced.status.success(), "{}", stderr(&replaced));
    assert_ne!(place.daemon_pid(), before);
    let word = |at: usize| u32::from_ne_bytes(head[at..at + 4].try_into().unwrap()) as usize;
    assert_eq!(word(0), 0);
    let mut rest = vec![0; word(4) + word(8)];
    assert!(rest.len() > 512 << 10, "{} bytes", rest.len());
    stream.read_exact(&mut rest).unwrap();
    assert_eq!(rest.windows(5).filter(|bytes| bytes == b"zero\0").count(), 20_000);
    // And another request.
    stream.write_all(&whole[hello().len()..]).unwrap();
    stream.read_exact(&mut head).unwrap();
    place.ok("daemon --stop");
}

/// At the end of its descriptors a daemon still does what it is told.
#[test]
fn without_descriptors() {
    use rustix::process::{Pid, Resource, Rlimit, prlimit};
    let place = Place::new();
    place.zero("vol");
    let pid = place.daemon_pid().unwrap();
    let open = || std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count() as u64;
    let limit = Rlimit { current: Some(open() + 40), maximum: Some(open() + 40) };
    prlimit(Pid::from_raw(pid as i32), Resource::Nofile, limit).unwrap();
    let connect = |name: &str| UnixStream::connect(place.dir().join(name)).unwrap();
    let taken: Vec<_> = (0..100).map(|_| connect("nbd.sock")).collect();
    let idle: Vec<_> = (0..100).flat_map(|_| ["control.sock", "udm.sock"].map(connect)).collect();
    for line in ["ls", "daemon --status", "info vol", "ls"] {
        let mut command = place.command("udm");
        let command = command.args(line.split(' ')).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        until(&format!("{line} is answered"), || child.try_wait().unwrap().is_some());
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{line}: {}", stderr(&output));
        assert!(stdout(&output).contains("vol") || line == "daemon --status", "{}", stdout(&output));
    }
    assert_eq!(place.ok("daemon --stop"), "");
    drop((taken, idle));
}

/// Also when the limit comes down, below the numbers that descriptors kept for this had at a busier time.
#[test]
fn with_fewer_descriptors_than_before() {
    use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};
    let place = Place::new();
    place.zero("vol");
    let pid = place.daemon_pid().unwrap();
    let numbers = || -> Vec<u64> {
        let all = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
        all.map(|entry| entry.unwrap().file_name().to_str().unwrap().parse().unwrap()).collect()
    };
    let limit = |current| {
        let limit = Rlimit { current, maximum: getrlimit(Resource::Nofile).maximum };
        prlimit(Pid::from_raw(pid as i32), Resource::Nofile, limit).unwrap();
    };
    let connect = |name: &str| UnixStream::connect(place.dir().join(name)).unwrap();
    let few = numbers().len() as u64;
    let kept = || {
        let all = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
        let links = all.filter_map(|entry| std::fs::read_link(entry.unwrap().path()).ok());
        links.filter(|link| link.to_string_lossy().contains("eventfd")).count()
    };
    // Nobody has wanted any of them by now.
    let before = kept();
    // Mostly clients who have nothing to be late with; the last ones may find nothing.
    let fill = |to: u64| {
        let (mut taken, mut last) = (Vec::new(), Vec::new());
        until("every number is taken", || {
            let free = to - numbers().into_iter().filter(|number| *number < to).count() as u64;
            match free {
                0 => {}
                1..4 => last.push(connect("nbd.sock")),
                4.. => taken.push(NbdHold::open(&place.dir().join("nbd.sock"), "vol").unwrap()),
            }
            free == 0
        });
        (taken, last)
    };
    // What is kept goes to clients who do not go, and is had again with the limit of before, beyond all that is in use.
    let many = few + 120;
    limit(Some(many));
    let taken = fill(many);
    // More than are kept: the server of the exports may have let go of one in between, and idle ones may be hung up on.
    let half = || {
        let mut stream = connect("control.sock");
        let _ = stream.write_all(b"U");
        stream
    };
    let halves: Vec<_> = (0..24).map(|_| half()).collect();
    until("what was kept is given up", || kept() + 16 <= before);
    limit(getrlimit(Resource::Nofile).maximum);
    until("there are some above", || numbers().into_iter().filter(|number| *number >= many).count() >= 10);
    drop((taken, halves));
    until("all have gone", || numbers().len() as u64 <= few + 1);
    limit(Some(few + 40));
    let taken = fill(few + 40);
    let halves: Vec<_> = (0..8).map(|_| half()).collect();
    let mut child = place.command("udm").arg("ls").stdout(Stdio::piped()).spawn().unwrap();
    until("ls is answered", || child.try_wait().unwrap().is_some());
    assert_eq!(stdout(&child.wait_with_output().unwrap()), "vol\t(600:0)\n");
    // Not because others have gone.
    for mut half in halves {
        half.set_nonblocking(true).unwrap();
        assert_eq!(half.read(&mut [0]).unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
    }
    drop(taken);
}

#[test]
fn an_export_holds_its_device() {
    let place = Place::new();
    place.zero("vol");
    let socket = place.dir().join("nbd.sock");
    let hold = NbdHold::open(&socket, "vol").unwrap();
    assert!(place.ok("info -c --noheadings -o open vol").contains('1'));
    let output = place.udm(["remove", "vol"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("vol is in use"), "{}", stderr(&output));
    drop(hold);
    assert_eq!(place.ok("remove vol"), "", "a client that has closed is no obstacle");
    for _ in 0..20 {
        place.zero("vol");
        drop(NbdHold::open(&socket, "vol").unwrap());
        assert_eq!(place.ok("remove vol"), "");
    }
    assert!(NbdHold::open(&socket, "vol").is_err());
    let output = place.udm(["create", "bare", "--notable"]);
    assert!(output.status.success());
    assert!(NbdHold::open(&socket, "bare").is_err_and(|e| e.contains("no active table")));
}

#[test]
fn an_export_over_read_only_devices_says_so() {
    let place = Place::new();
    let made = |words: &[&str]| assert!(place.udm(words).status.success(), "{words:?}");
    made(&["create", "low", "--readonly", "--table", "0 2048 zero"]);
    made(&["create", "over", "--table", "0 2048 linear /dev/mapper/low 0"]);
    made(&["create", "half", "--table", "0 2048 linear /dev/mapper/low 0\n2048 2048 zero"]);
    made(&["create", "both", "--table", "0 2048 linear /dev/mapper/low 0\n2048 2048 linear /dev/mapper/half 0"]);
    let socket = place.dir().join("nbd.sock").display().to_string();
    for (name, expect) in [("low", true), ("over", true), ("both", false)] {
        let uri = format!("nbd+unix:///{name}?socket={socket}");
        match std::process::Command::new("nbdinfo").args(["--is", "read-only", &uri]).output() {
            Ok(output) => assert_eq!(output.status.success(), expect, "{name}: {}", stderr(&output)),
            Err(error) => return println!("SKIP asking an export: nbdinfo: {error}"),
        }
    }
}

#[test]
fn options_and_exports() {
    let place = Place::new();
    place.zero("vol");
    let socket = place.dir().join("nbd.sock").display().to_string();
    assert_eq!(place.ok("export"), format!("vol\tnbd+unix:///vol?socket={socket}\n"));
    let uri = place.ok("export vol --tcp 127.0.0.1:0");
    assert!(uri.starts_with("nbd://127.0.0.1:") && uri.ends_with("/vol\n"), "{uri}");
    assert!(place.ok("export vol").contains(&uri), "it is listed");
    let log = std::fs::read_to_string(place.dir().join("state.log")).unwrap();
    assert!(log.contains("\"tcp\":\"127.0.0.1:"), "{log}");
    match std::process::Command::new("nbdinfo").args(["--size", uri.trim()]).output() {
        Ok(output) => assert_eq!(stdout(&output), "1048576\n", "{}", stderr(&output)),
        Err(error) => println!("SKIP reading over TCP: nbdinfo: {error}"),
    }
    place.ok("export vol --remove");
    let refused = |words: &[&str], expect: &str| {
        let output = place.udm(words);
        assert_eq!(output.status.code(), Some(1), "{words:?}");
        assert!(stderr(&output).contains(expect), "{} lacks {expect}", stderr(&output));
    };
    refused(&["export", "vol", "--remove"], "no such export");
    refused(&["export", "vol", "--tcp", "example.org"], "is no TCP address");
    refused(&["export", "nosuch", "--tcp", "127.0.0.1:0"], "no device has the name");
    refused(&["export", "nosuch"], "is not exported");
    place.ok("set vol clone_always=1 compile=0");
    assert!(place.ok("info --json vol").contains("\"clone_always\":true"));
    refused(&["set", "vol", "io_pool=1"], "known are clone_always");
    let table = "0 2048 linear null:size=1M:poll_queues=2 0";
    assert!(place.udm(["create", "polled", "--table", table]).status.success());
    let shows = |part: &str| {
        let info = place.ok("info --json polled");
        assert!(info.contains(part), "{info} lacks {part}");
    };
    shows("\"io_poll\":true");
    shows("\"polls\":{\"default\":0,\"fast\":0,\"sub\":0}");
    place.ok("set polled io_poll=0 poll_budget=7");
    shows("\"io_poll\":false");
    shows("\"poll_budget\":7");
    place.ok("set polled io_poll=1 poll_budget=auto poll_queues=0");
    shows("\"io_poll\":false");
    shows("\"poll_budget\":null");
    refused(&["set", "polled", "io_poll=1"], "poll_queues=0:latency_us=0:memory=0 cannot be polled");
    refused(&["set", "polled", "poll_queues=1025"], "expected 0 to 1024");
    refused(&["set", "polled", "io_poll=2"], "expected 0 or 1");
    place.ok("set polled poll_queues=1");
    shows("\"io_poll\":true");
    refused(&["set", "vol", "compile"], "expected KEY=VALUE");
    refused(&["set", "nosuch", "compile=1"], "no device has the name");
}

#[test]
fn paths_begin_where_the_caller_is() {
    let place = Place::new();
    place.ok("ls");
    let sub = place.root().join("sub");
    std::fs::create_dir(&sub).unwrap();
    std::fs::File::create(sub.join("disk")).and_then(|f| f.set_len(1 << 20)).unwrap();
    let create = |name: &str, dir: &std::path::Path| {
        place
            .command("udm")
            .args(["create", name, "--table", "0 2048 linear disk 0"])
            .current_dir(dir)
            .output()
            .unwrap()
    };
    assert!(create("vol", &sub).status.success());
    let missing = place.root().join("disk").display().to_string();
    assert!(stderr(&create("other", place.root())).contains(&missing));
    assert_eq!(place.ok("table vol"), format!("0 2048 linear {} 0\n", sub.join("disk").display()));
}

/// Copies the program, by another: of a file that this process writes, other tests' children may have a descriptor when
/// it is run.
fn copy_udm(to: &std::path::Path) {
    assert!(std::process::Command::new("cp").arg(crate::common::UDM).arg(to).status().unwrap().success());
}

/// Another user reaches the sockets only when their owner lets it, and is refused even then.
#[test]
fn other_users() {
    if !rustix::process::geteuid().is_root() {
        println!("SKIP other users: only root can act as one");
        return;
    }
    let place = Place::new();
    place.zero("vol");
    let open = |path: &std::path::Path, mode| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    open(place.root(), 0o755);
    open(&place.dir(), 0o755);
    for name in ["control.sock", "udm.sock", "nbd.sock"] {
        open(&place.dir().join(name), 0o666);
    }
    // A copy, since the one that was built may lie where others cannot go.
    let program = place.root().join("udm");
    copy_udm(&program);
    open(&program, 0o755);
    let run = |words: &[&str]| {
        let mut command = std::process::Command::new(&program);
        command.args(words).env("UDM_DIR", place.dir()).current_dir("/").uid(65534).gid(65534).output().unwrap()
    };
    for words in [["ls"].as_slice(), &["daemon", "--stop"], &["set", "vol", "compile=0"]] {
        let output = run(words);
        assert_eq!(output.status.code(), Some(1), "{words:?}");
        assert!(stderr(&output).contains("user 65534 may not use it"), "{words:?}: {}", stderr(&output));
    }
    open(&place.dir(), 0o700);
    assert_eq!(place.ok("ls"), "vol\t(600:0)\n");
}

#[test]
fn a_command_that_waits_says_for_what() {
    use std::io::{BufRead, BufReader};
    let place = Place::new();
    let silent = std::os::unix::net::UnixListener::bind(place.root().join("far.sock")).unwrap();
    let table = format!("0 8 linear nbd+unix:///disk?socket={} 0", place.root().join("far.sock").display());
    let mut waiting = place.command("udm");
    waiting.args(["create", "far", "--table", &table]).stderr(std::process::Stdio::piped());
    let mut waiting = waiting.spawn().unwrap();
    let mut told = String::new();
    let mut stderr = BufReader::new(waiting.stderr.take().unwrap());
    stderr.read_line(&mut told).unwrap();
    assert!(told.starts_with("udm: ") && told.contains(" opens nbd+unix:///disk?socket="), "{told:?}");
    // Others are served meanwhile, and can ask.
    place.zero("near");
    assert!(place.ok("daemon --status").contains(": opens nbd+unix:///disk"));
    let dump: serde_json::Value = serde_json::from_str(&place.ok("debug dump --json")).unwrap();
    assert_eq!(dump["commands"][0]["command"], "DM_TABLE_LOAD");
    assert_eq!(dump["devices"][1]["name"], "near");
    drop(silent);
    assert!(!waiting.wait().unwrap().success());
    assert_eq!(place.ok("ls --noheadings").lines().count(), 1, "what could not be loaded is not left");
}

/// Before a client says anything it looks whose directory it is, and who answers there.
#[test]
fn daemons_of_other_users() {
    const OTHER: u32 = 65534;
    if !rustix::process::geteuid().is_root() {
        return println!("SKIP daemons of other users: only root can act as one");
    }
    let place = Place::new();
    place.zero("mine");
    let open = |path: &std::path::Path, mode| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    open(place.root(), 0o755);
    let program = place.root().join("udm");
    copy_udm(&program);
    open(&program, 0o755);
    let theirs = place.root().join("theirs");
    std::fs::create_dir(&theirs).unwrap();
    std::os::unix::fs::chown(&theirs, Some(OTHER), Some(OTHER)).unwrap();
    open(&theirs, 0o755);
    let run = |uid: u32, words: &[&str], dir: &std::path::Path| {
        let mut command = std::process::Command::new(&program);
        command.args(words).env("UDM_DIR", dir).current_dir("/").uid(uid).gid(uid).output().unwrap()
    };
    let refused = |uid: u32, words: &[&str], dir: &std::path::Path, expect: &str| {
        let output = run(uid, words, dir);
        assert_eq!(output.status.code(), Some(1), "{words:?}: {}", stdout(&output));
        assert!(stderr(&output).contains(expect), "{words:?}: {} lacks {expect}", stderr(&output));
    };
    let output = run(OTHER, &["create", "vol", "--table", "0 8 zero"], &theirs);
    assert!(output.status.success(), "{}", stderr(&output));
    for name in ["control.sock", "udm.sock"] {
        open(&theirs.join(name), 0o666);
    }
    let belongs = format!("{} belongs to user {OTHER}", theirs.display());
    for words in
        [["ls"].as_slice(), &["daemon", "--stop"], &["daemon", "--status"], &["export"], &["daemon", "--replace"]]
    {
        refused(0, words, &theirs, &belongs);
    }
    refused(OTHER - 1, &["ls"], &theirs, &belongs);
    // Who types it means it.
    let typed = place.ok(&format!("--dir {} ls", theirs.display()));
    assert_eq!(typed, "vol\t(600:0)\n");
    // Another's socket in one's own directory.
    let mine = place.root().join("mine");
    std::fs::create_dir(&mine).unwrap();
    open(&mine, 0o700);
    for name in ["control.sock", "udm.sock"] {
        std::fs::rename(theirs.join(name), mine.join(name)).unwrap();
    }
    for words in [["ls"].as_slice(), &["daemon", "--status"]] {
        refused(0, words, &mine, &format!("is served by user {OTHER}"));
    }
    for name in ["control.sock", "udm.sock"] {
        std::fs::rename(mine.join(name), theirs.join(name)).unwrap();
    }
    // A link is followed when it is one's own.
    let link = place.root().join("link");
    std::os::unix::fs::symlink(place.dir(), &link).unwrap();
    assert_eq!(stdout(&run(0, &["ls"], &link)), "mine\t(600:0)\n");
    std::os::unix::fs::lchown(&link, Some(OTHER), Some(OTHER)).unwrap();
    for words in [["ls"].as_slice(), &["daemon"]] {
        refused(0, words, &link, &format!("is a link of user {OTHER}"));
    }
    assert!(run(OTHER, &["daemon", "--stop"], &theirs).status.success());
}
