use super::*;
use std::cell::RefCell;
use std::io::{self, BufReader, Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use udm_base::Errno;
use udm_core::{Error, MappedDevice, Registry};
use udm_io::{Clock, Domain, Nanos};

struct Fake {
    registry: Registry,
    changes: AtomicU32,
    ended: AtomicU32,
    underway: UnderwayList,
}

impl Fake {
    fn new() -> Self {
        let host = |_: &udm_core::HostRequest<'_>| Err(Error::new(Errno::ENOENT, "nothing"));
        let registry = Registry::new(Domain::default(), &[], Box::new(host));
        registry.create("vol", "U", None).unwrap();
        registry.create("other", "", None).unwrap();
        let underway = UnderwayList::new(registry.domain().clock().clone());
        Self { registry, changes: AtomicU32::new(0), ended: AtomicU32::new(0), underway }
    }
}

impl Service for Fake {
    fn registry(&self) -> &Registry {
        &self.registry
    }
    fn hello(&self) -> Hello {
        Hello { version: VERSION, program: "fake 1".into(), pid: 7 }
    }
    fn exports(&self) -> Vec<ExportEntry> {
        vec![]
    }
    fn add_export(&self, name: &str, tcp: &str) -> Result<ExportEntry, Error> {
        let uri = format!("nbd://{tcp}/{name}");
        Ok(ExportEntry { name: name.into(), transport: "tcp".into(), address: tcp.into(), uri })
    }
    fn add_vhost_user(&self, name: &str, at: &VhostUserExport) -> Result<ExportEntry, Error> {
        let (socket, transport) = (at.socket.clone(), "vhost-user".into());
        Ok(ExportEntry { name: name.into(), transport, uri: format!("vhost-user:{socket}"), address: socket })
    }
    fn remove_export(&self, name: &str, _: Option<&str>, _: Option<&str>) -> Result<usize, Error> {
        let list: Vec<_> = self.underway().into_iter().map(|u| (u.command, u.device, u.pid)).collect();
        assert_eq!(list, [("export-remove".to_owned(), name.to_owned(), Some(42))], "it is under way");
        Err(Error::new(Errno::ENXIO, format!("{name} is not exported over TCP")))
    }
    fn underway(&self) -> Vec<Underway> {
        self.underway.list()
    }
    fn begin(&self, command: &str, device: &str, pid: Option<u32>) -> Option<UnderwayGuard<'_>> {
        Some(self.underway.begin(command, device, pid))
    }
    fn log_tail(&self, lines: usize) -> Vec<String> {
        vec!["line".into(); lines.min(2)]
    }
    fn may_change(&self) -> Result<(), Error> {
        Ok(())
    }
    fn changed(&self, _: Changed) -> Result<(), Error> {
        self.changes.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
    fn lost(&self, device: &MappedDevice) -> Option<String> {
        (device.device_name() == "gone").then(|| "its file".to_owned())
    }
    fn may_replace(&self, version: u32) -> Result<(), Error> {
        if version == 1 { Ok(()) } else { Err(Error::new(Errno::EPROTO, "another version")) }
    }
    fn shut_down(&self, _: bool) {
        self.ended.fetch_add(1, Ordering::Relaxed);
    }
}

fn talk(service: &Fake, lines: &str) -> (String, Next) {
    let (mut out, mut asker) = (String::new(), Asker { greeted: false, pid: Some(42) });
    for line in lines.split_inclusive('\n') {
        let (answer, next) = respond(line.as_bytes(), service, &mut asker);
        out += &answer;
        if next != Next::Request {
            return (out, next);
        }
    }
    (out, Next::Request)
}

#[test]
fn requests_and_answers() {
    let service = Fake::new();
    let hello = r#"{"op":"hello","version":1}"#;
    let check = |request: &str, expect: &str| {
        let (out, next) = talk(&service, &format!("{hello}\n{request}\n"));
        assert_eq!(next, Next::Request, "{request}");
        let mut answers = out.lines();
        assert_eq!(answers.next(), Some(r#"{"ok":{"pid":7,"program":"fake 1","version":1}}"#));
        let answer = answers.next().unwrap();
        assert!(answer.contains(expect), "{request}: {answer} lacks {expect}");
    };
    check(r#"{"op":"ping"}"#, r#"{"ok":null}"#);
    check(r#"{"op":"stats","name":"vol"}"#, r#""zero_skipped_bytes":0"#);
    check(r#"{"op":"stats","name":"vol"}"#, r#""polls":{"default":0,"fast":0,"sub":0}"#);
    check(r#"{"op":"stats"}"#, r#""name":"other""#);
    check(r#"{"op":"stats","name":"x"}"#, r#"{"error":{"errno":6,"message":"no device has the name \"x\""}}"#);
    check(r#"{"op":"set","name":"vol","key":"clone_always","value":"1"}"#, r#"{"ok":null}"#);
    assert!(service.registry.by_name("vol").unwrap().clone_always());
    check(r#"{"op":"set","name":"vol","key":"compile","value":"0"}"#, r#"{"ok":null}"#);
    assert!(!service.registry.by_name("vol").unwrap().compile());
    assert_eq!(service.changes.load(Ordering::Relaxed), 2);
    check(r#"{"op":"set","name":"vol","key":"compile","value":"maybe"}"#, "compile=maybe: expected 0 or 1");
    check(r#"{"op":"set","name":"vol","key":"read_ahead","value":"-1"}"#, "expected a number of sectors, or auto");
    check(
        r#"{"op":"set","name":"vol","key":"io_pool","value":"1"}"#,
        "no option is called \\\"io_pool\\\": known are clone_always, compile, io_poll, no_space_timeout, poll_budget, poll_queues, read_ahead",
    );
    assert_eq!(service.changes.load(Ordering::Relaxed), 2, "a refusal changes nothing");
    check(r#"{"op":"export-add","name":"vol","tcp":"[::1]:0"}"#, r#""uri":"nbd://[::1]:0/vol""#);
    check(r#"{"op":"export-remove","name":"vol"}"#, "is not exported over TCP");
    check(r#"{"op":"export-list"}"#, r#"{"ok":{"exports":[]}}"#);
    check(r#"{"op":"node-list"}"#, r#"{"ok":{"nodes":[]}}"#);
    check(r#"{"op":"node-add","name":"vol","kind":"loop"}"#, "there are no nodes here");
    check(r#"{"op":"node-add","name":"vol","kind":"lopp"}"#, "the request cannot be understood");
    check(r#"{"op":"node-remove","name":"vol"}"#, "vol has no node");
    check(r#"{"op":"host-devices"}"#, r#"{"ok":{"devices":[]}}"#);
    check(r#"{"op":"progress"}"#, r#"{"ok":{"underway":[]}}"#);
    check(r#"{"op":"debug"}"#, r#""name":"other","notes":[],"parked":0,"state":"empty""#);
    check(r#"{"op":"log","lines":9}"#, r#"{"ok":{"lines":["line","line"]}}"#);
    check(r#"{"op":"shutdown"}"#, r#"{"ok":null}"#);
    assert_eq!(service.ended.load(Ordering::Relaxed), 1);
    for bad in [r#"{"op":"nonsense"}"#, "[]", "", r#"{"op":"set","name":"vol"}"#] {
        check(bad, "the request cannot be understood");
    }
}

#[test]
fn the_greeting_comes_first() {
    let service = Fake::new();
    assert!(talk(&service, "{\"op\":\"shutdown\"}\n").0.contains("before any other request"));
    assert!(
        talk(&service, "{\"op\":\"hello\",\"version\":2}\n").0.contains("version 2 of the protocol, this daemon 1")
    );
    assert_eq!(service.ended.load(Ordering::Relaxed), 0);
    assert_eq!(talk(&service, "").0, "");
}

#[test]
fn lines_that_are_none() {
    let service = Fake::new();
    let read = |text: &[u8], max| read_line(&mut BufReader::new(text), max).map_err(|e| e.kind());
    assert_eq!(read(b"abc\n", 4), Ok(Some("abc".into())));
    assert_eq!(read(b"abcd\n", 4), Err(io::ErrorKind::InvalidData));
    assert_eq!(read(b"\xff\n", 4), Err(io::ErrorKind::InvalidData));
    assert_eq!(read(b"", 4), Ok(None));
    let long = format!("{}\n", "x".repeat(MAX_LINE));
    let (out, next) = talk(&service, &long);
    assert!(out.contains("more than 4194304 bytes"), "{out}");
    assert_eq!(next, Next::HangUp);
    assert_eq!(respond(b"\xff\n", &service, &mut Asker::default()).1, Next::HangUp);
    let hello = r#"{"op":"hello","version":1}"#;
    assert_eq!(talk(&service, &format!("{hello}\n{}\n", r#"{"op":"replace","version":1}"#)).1, Next::Replace);
    assert_eq!(talk(&service, &format!("{hello}\n{}\n", r#"{"op":"replace","version":2}"#)).1, Next::Request);
}

/// A stream whose writes are requests and whose reads are the answers.
struct Loopback<'a> {
    service: &'a Fake,
    sent: RefCell<String>,
    answers: Vec<u8>,
}

impl Write for Loopback<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.sent.borrow_mut().push_str(std::str::from_utf8(bytes).unwrap());
        let all = self.sent.borrow().clone();
        self.answers = talk(self.service, &all).0.lines().last().unwrap_or_default().as_bytes().to_vec();
        self.answers.push(b'\n');
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Read for Loopback<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let n = buf.len().min(self.answers.len());
        buf[..n].copy_from_slice(&self.answers[..n]);
        self.answers.drain(..n);
        Ok(n)
    }
}

#[test]
fn the_client() {
    let service = Fake::new();
    let stream = Loopback { service: &service, sent: RefCell::default(), answers: vec![] };
    let mut client = Client::connect(stream).unwrap();
    assert_eq!((client.daemon().program.as_str(), client.daemon().pid), ("fake 1", 7));
    let stats = client.ask(&Request::Stats { name: Some("vol".into()) }).unwrap();
    let stats: DeviceStats = serde_json::from_value(stats["devices"][0].clone()).unwrap();
    assert_eq!((stats.name.as_str(), stats.state.as_str(), stats.read_ahead), ("vol", "ACTIVE", 256));
    match client.ask(&Request::ExportRemove { name: "vol".into(), tcp: None, vhost_user: None }) {
        Err(ClientError::Refused { errno: Errno::ENXIO, message }) => assert!(message.contains("vol"), "{message}"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn commands_under_way() {
    struct Now(AtomicU32);
    impl Clock for Now {
        fn now(&self) -> Nanos {
            Nanos(u64::from(self.0.load(Ordering::Relaxed)) * 1_000_000)
        }
    }
    let clock = Arc::new(Now(AtomicU32::new(5)));
    let list = UnderwayList::new(clock.clone());
    let first = list.begin("DM_DEV_SUSPEND", "a", Some(1));
    clock.0.store(12, Ordering::Relaxed);
    let second = list.begin("DM_DEV_WAIT", "b", None);
    let text = |u: &Underway| format!("{} {} {}", u.command, u.device, u.elapsed_ms);
    assert_eq!(list.list().iter().map(text).collect::<Vec<_>>(), ["DM_DEV_SUSPEND a 7", "DM_DEV_WAIT b 0"]);
    drop(first);
    assert_eq!(list.list().iter().map(text).collect::<Vec<_>>(), ["DM_DEV_WAIT b 0"]);
    drop(second);
    assert_eq!(list.list(), []);
}
