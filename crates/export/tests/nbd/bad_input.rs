//! Clients that break the rules, or stop in the middle: a clear error to the one who does, nothing lost for others.

use crate::device::{ByHand, Recorder};
use crate::raw::{Answer, Raw};
use crate::served::{SIZE, Served};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::io::Write;
use std::sync::Arc;
use udm_export::nbd::Server;
use udm_io::Limits;
use udm_nbd::wire::consts::opt;
use udm_nbd::wire::{Command, NbdError};

const MIB32: u32 = 32 << 20;

/// After each refusal the connection goes on, in place: the payloads of refused writes are skipped.
#[test]
fn refused_requests_leave_the_connection_in_place() {
    let served = Served::memory();
    for structured in [false, true] {
        let mut raw = Raw::go(&served.socket(), "mem", structured);
        raw.write(0, &[0x42; 4096]);
        let long = vec![9; MIB32 as usize + 512];
        let refused: [(u16, u64, u32, &[u8], NbdError); 10] = [
            (Command::Read as u16, SIZE, 512, b"", NbdError::Inval),
            (Command::Read as u16, u64::MAX, 512, b"", NbdError::Inval),
            (Command::Write as u16, SIZE - 512, 1024, &long[..1024], NbdError::NoSpc),
            (Command::Write as u16, 1, 4096, &long[..4096], NbdError::Inval),
            (Command::Write as u16, 0, 100, &long[..100], NbdError::Inval),
            (Command::Read as u16, 0, MIB32 + 512, b"", NbdError::Inval),
            (Command::Write as u16, 0, MIB32 + 512, &long, NbdError::Inval),
            (Command::Trim as u16, SIZE, 512, b"", NbdError::Inval),
            (200, 0, 512, b"", NbdError::Inval),
            (Command::WriteZeroes as u16, SIZE - 512, 1024, b"", NbdError::NoSpc),
        ];
        for (kind, offset, length, payload, expect) in refused {
            let mut bytes = raw.header(kind, 0, offset, length);
            bytes.extend_from_slice(payload);
            raw.stream.write_all(&bytes).expect("sent");
            assert_eq!(raw.answer().1, Answer::Failed(expect), "{kind} at {offset}, {length} bytes");
            assert_eq!(raw.read(0, 512), vec![0x42; 512]);
        }
    }
}

#[test]
fn a_stream_out_of_place_is_hung_up_on() {
    let served = Served::memory();
    let mut good = Raw::go(&served.socket(), "mem", true);
    let mut raw = Raw::go(&served.socket(), "mem", true);
    raw.stream.write_all(&[0xaa; 28]).expect("sent");
    assert!(raw.is_hung_up());
    let mut raw = Raw::connect(&served.socket());
    raw.stream.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").expect("sent");
    assert!(raw.is_hung_up());
    let mut raw = Raw::connect(&served.socket());
    let mut bytes = Vec::new();
    udm_nbd::wire::option::put_option(&mut bytes, opt::EXPORT_NAME, b"nope");
    raw.stream.write_all(&bytes).expect("sent");
    assert!(raw.is_hung_up());
    good.write(0, &[1; 512]);
}

/// Bytes that come one at a time are put together, whatever they are.
#[test]
fn a_slow_client_is_understood() {
    let served = Served::memory();
    let mut raw = Raw::go(&served.socket(), "mem", true);
    let mut bytes = raw.header(Command::Write as u16, 0, 512, 1024);
    bytes.extend_from_slice(&[5; 1024]);
    bytes.extend(raw.header(Command::Flush as u16, 0, 0, 0));
    for byte in bytes {
        raw.stream.write_all(&[byte]).expect("sent");
    }
    assert_eq!(raw.answer().1, Answer::Done);
    assert_eq!(raw.answer().1, Answer::Done);
    assert_eq!(raw.read(512, 1024), vec![5; 1024]);
}

/// Clients vanish in the middle of headers, payloads and answers; another goes on writing and reading, and in the end
/// every export is closed.
#[test]
fn clients_that_vanish_harm_nobody() {
    let served = Served::memory();
    let mut good = Raw::go(&served.socket(), "mem", true);
    for round in 0..50u32 {
        let mut raw = Raw::go(&served.socket(), "mem", round % 2 == 0);
        let bytes = match round % 5 {
            0 => raw.header(Command::Write as u16, 0, 0, 4096)[..20].to_vec(),
            1 => [raw.header(Command::Write as u16, 0, 0, 4096), vec![1; 1000]].concat(),
            2 => [raw.header(Command::Write as u16, 0, 0, MIB32), vec![1; 300_000]].concat(),
            3 => (0..100).flat_map(|_| raw.header(Command::Read as u16, 0, 0, 1 << 20)).collect(),
            _ => [raw.header(Command::Write as u16, 0, 0, MIB32 + 512), vec![1; 10_000]].concat(),
        };
        raw.stream.write_all(&bytes).expect("sent");
        drop(raw);
        let data = vec![round as u8; 8192];
        good.write(1 << 20, &data);
        assert_eq!(good.read(1 << 20, 8192), data);
    }
    assert!(served.server.reap_hangups());
    assert_eq!((served.open(), served.server.connections()), (1, 1));
}

/// A client that asks for much and takes nothing is not served without bound: the server stops to listen to it.
#[test]
fn a_client_that_takes_no_answers_is_held_back() {
    let device = Arc::new(Recorder::new(SIZE, Limits::default()));
    let served = Served::device(device.clone());
    let mut greedy = Raw::go(&served.socket(), "dev", true);
    let mut bytes = Vec::new();
    for _ in 0..1000 {
        bytes.extend(greedy.header(Command::Read as u16, 0, 0, 1 << 20));
    }
    greedy.stream.write_all(&bytes).expect("28 KB fit the socket");
    // Another client is served meanwhile, by the same thread: when it has its answer, the first was looked at.
    let mut good = Raw::go(&served.socket(), "dev", true);
    for _ in 0..10 {
        good.write(0, &[3; 4096]);
    }
    let reads = device.seen.lock().expect("unpoisoned").iter().filter(|s| s.sectors == 2048).count();
    assert!((1..=16).contains(&reads), "{reads} reads of 1 MiB were started");
    // It is not forgotten either.
    for _ in 0..1000 {
        assert!(matches!(greedy.answer().1, Answer::Data(data) if data.len() == 1 << 20));
    }
}

/// Requests that take no memory are bounded by number.
#[test]
fn requests_under_way_are_bounded() {
    let device = Arc::new(Recorder::new(SIZE, Limits::default()));
    let served = Served::device(device.clone());
    let mut raw = Raw::go(&served.socket(), "dev", true);
    device.hold();
    let bytes: Vec<u8> = (0..2000).flat_map(|_| raw.header(Command::Flush as u16, 0, 0, 0)).collect();
    raw.stream.write_all(&bytes).expect("56 KB fit the socket");
    device.await_held(256);
    let mut good = Raw::go(&served.socket(), "dev", true);
    good.send(Command::Flush, 0, 0, 0, b"");
    device.await_held(257);
    assert_eq!(device.held(), 257);
    device.release_in_reverse();
    for _ in 0..2000 {
        assert_eq!(raw.answer().1, Answer::Done);
    }
    assert_eq!(good.answer().1, Answer::Done);
}

/// Pages of the process that are in memory.
fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").expect("procfs");
    statm.split(' ').nth(1).and_then(|n| n.parse().ok()).expect("a number")
}

/// A thousand clients that have each done something and then wait, half of them in the middle of a header, cost next
/// to nothing.
#[test]
fn a_thousand_idle_connections() {
    let limit = getrlimit(Resource::Nofile);
    if limit.maximum.is_some_and(|most| most < 2200) {
        println!("SKIP a hard limit of {limit:?} descriptors");
        return;
    }
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).expect("up to the hard limit");
    let served = Served::memory();
    let connect = || {
        let mut raw = Raw::go(&served.socket(), "mem", true);
        raw.write(0, &[1; 65536]);
        raw.read(0, 65536);
        raw
    };
    let mut warm = connect();
    let before = resident();
    let mut idle: Vec<Raw> = (0..1000).map(|_| connect()).collect();
    for raw in idle.iter_mut().step_by(2) {
        let half = raw.header(Command::Write as u16, 0, 0, 4096)[..15].to_vec();
        raw.stream.write_all(&half).expect("sent");
    }
    warm.read(0, 65536);
    let grown = (resident().saturating_sub(before)) * 4096;
    assert!(grown < 24 << 20, "{grown} bytes for 1000 connections");
    assert_eq!(served.server.connections(), 1001);
    for raw in idle.iter_mut().skip(1).step_by(2) {
        raw.write(0, &[2; 512]);
    }
    drop(idle);
    assert!(served.server.reap_hangups());
    assert_eq!(served.server.connections(), 1);
}

/// A client that does not take what it has asked for holds memory that others wait for: not for ever.
#[test]
fn a_client_that_takes_nothing_does_not_keep_its_memory_for_ever() {
    let clock = Arc::new(ByHand(1.into()));
    let domain = udm_io::DomainBuilder::default().clock(clock.clone()).build();
    let device = Arc::new(Recorder::new(SIZE, Limits::default()));
    let devices = vec![("dev".into(), device as Arc<dyn udm_io::BlockDevice>, false)];
    let served = Served::start(domain, Server::builder().threads(1).memory(8 << 20), devices);
    // One reply that is a whole, by a client that takes no chunks.
    let mut stalled = Raw::go(&served.socket(), "dev", false);
    stalled.send(Command::Read, 0, 0, 8 << 20, b"");
    let mut small = Raw::go(&served.socket(), "dev", true);
    while small.read(0, 4096).is_empty() {}
    let mut large = Raw::go(&served.socket(), "dev", false);
    let cookie = large.send(Command::Read, 0, 0, 4 << 20, b"");
    let mut chunks = Raw::go(&served.socket(), "dev", true);
    assert_eq!(chunks.read(0, 4 << 20).len(), 4 << 20, "who takes chunks does not wait");
    small.write(0, &[2; 4096]);
    assert_eq!(served.open(), 4, "nobody is in a hurry yet");
    clock.0.store(31_000_000_000, std::sync::atomic::Ordering::SeqCst);
    assert!(matches!(large.answer(), (c, Answer::Data(data)) if c == cookie && data.len() == 4 << 20));
    assert_eq!(served.open(), 3);
    small.write(0, &[3; 4096]);
}
