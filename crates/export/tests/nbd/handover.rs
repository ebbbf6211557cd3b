//! Connections that go on in another server, whatever they are in the middle of.

use crate::device::Recorder;
use crate::raw::{Answer, Raw};
use crate::served::{SIZE, Served};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use udm_export::nbd::{ConnectionState, Server};
use udm_io::{BlockDevice, DomainBuilder, Limits};
use udm_nbd::wire::consts::{MAX_OPTION_DATA, cmd_flag, opt};
use udm_nbd::wire::option::put_option;
use udm_nbd::wire::request::Request;
use udm_nbd::wire::{Command, NbdError};

/// A generator good enough to choose places with.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }
}

fn request(bytes: &mut Vec<u8>, command: Command, flags: u16, cookie: u64, offset: u64, length: u32) {
    let kind = command as u16;
    bytes.extend_from_slice(&Request { flags, kind, cookie, offset, length }.encode());
}

/// From the greeting to the disconnect, as one client may send it without waiting: options, requests of every kind,
/// writes of many sizes, refused ones too.
fn conversation(random: &mut Random) -> Vec<u8> {
    let mut bytes = 3u32.to_be_bytes().to_vec();
    put_option(&mut bytes, opt::STRUCTURED_REPLY, b"");
    put_option(&mut bytes, 99, &vec![1; MAX_OPTION_DATA + 700]);
    let mut name = 3u32.to_be_bytes().to_vec();
    name.extend_from_slice(b"mem");
    name.extend_from_slice(&1u32.to_be_bytes());
    name.extend_from_slice(&15u32.to_be_bytes());
    name.extend_from_slice(b"base:allocation");
    put_option(&mut bytes, opt::SET_META_CONTEXT, &name);
    let mut go = 3u32.to_be_bytes().to_vec();
    go.extend_from_slice(b"mem");
    go.extend_from_slice(&0u16.to_be_bytes());
    put_option(&mut bytes, opt::GO, &go);
    for cookie in 0..60 {
        let (offset, length) = (random.below(SIZE / 1024) * 512, (1 + random.below(200) as u32) * 512);
        let write = |bytes: &mut Vec<u8>, flags, offset| {
            request(bytes, Command::Write, flags, cookie, offset, length);
            bytes.extend((0..length).map(|i| (i as u64 + cookie) as u8));
        };
        match random.below(9) {
            0 => request(&mut bytes, Command::Read, 0, cookie, offset, length),
            1 => request(&mut bytes, Command::Flush, 0, cookie, 0, 0),
            2 => request(&mut bytes, Command::WriteZeroes, 0, cookie, offset, length),
            3 => request(&mut bytes, Command::BlockStatus, 0, cookie, offset, length),
            4 => write(&mut bytes, 0, SIZE),
            5 => write(&mut bytes, 1 << 9, 512),
            6 => request(&mut bytes, Command::Read, 0, cookie, SIZE, length),
            7 => write(&mut bytes, cmd_flag::FUA, offset),
            _ => write(&mut bytes, 0, offset),
        }
    }
    request(&mut bytes, Command::Disc, 0, 99, 0, 0);
    bytes
}

/// The answers, in an order that does not depend on when which was ready: the handshake's bytes, then replies by
/// cookie.
fn sorted(mut answers: &[u8]) -> (Vec<u8>, Vec<(u64, Vec<u8>)>) {
    // The greeting and four options; the second is refused, the fourth has an info.
    let mut front = 18;
    let mut acks = 0;
    while acks < 4 {
        let head = &answers[front..front + 20];
        let word = |at: usize| u32::from_be_bytes(head[at..at + 4].try_into().unwrap());
        acks += u32::from(word(12) == 1 || word(12) & 1 << 31 != 0);
        front += 20 + word(16) as usize;
    }
    let handshake = answers[..front].to_vec();
    answers = &answers[front..];
    let mut replies = Vec::new();
    while !answers.is_empty() {
        let be = |at: usize, len: usize| answers[at..at + len].iter().fold(0u64, |n, b| n << 8 | u64::from(*b));
        let len = match be(0, 4) {
            0x6744_6698 => 16,
            0x668e_33ef => 20 + be(16, 4) as usize,
            other => panic!("no reply begins with {other:#x}"),
        };
        replies.push((be(8, 8), answers[..len].to_vec()));
        answers = &answers[len..];
    }
    replies.sort();
    (handshake, replies)
}

/// Sends the conversation, with a handover at each of `cuts`. All that the client receives.
fn converse(served: &mut Served, bytes: &[u8], cuts: &[usize], eager: bool) -> Vec<u8> {
    let mut stream = UnixStream::connect(served.socket()).expect("the server listens");
    stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a timeout");
    let mut reader = stream.try_clone().expect("a clone");
    let (ready, go) = std::sync::mpsc::channel();
    let client = std::thread::spawn(move || {
        // One that is not eager leaves its replies where they are while servers change.
        if !eager {
            let _ = go.recv();
        }
        let mut all = Vec::new();
        reader.read_to_end(&mut all).expect("answers, then the end");
        all
    });
    let mut at = 0;
    for cut in cuts {
        stream.write_all(&bytes[at..*cut]).expect("sent");
        at = *cut;
        served.hand_over(1 + at % 3);
    }
    let _ = ready.send(());
    stream.write_all(&bytes[at..]).expect("sent");
    client.join().expect("the client ends")
}

#[test]
fn whatever_a_client_is_in_the_middle_of_goes_on() {
    for seed in 0..12 {
        let mut random = Random(seed);
        let bytes = conversation(&mut random);
        let expect = converse(&mut Served::memory(), &bytes, &[], true);
        let mut served = Served::memory();
        let mut cuts: Vec<usize> = (0..40).map(|_| random.below(bytes.len() as u64) as usize).collect();
        cuts.push(random.below(40) as usize);
        cuts.sort_unstable();
        // An idle client's socket must hold what it does not take.
        let eager = seed % 4 != 3;
        if !eager {
            cuts.truncate(4);
            cuts.iter_mut().for_each(|cut| *cut %= 4000);
            cuts.sort_unstable();
        }
        let found = converse(&mut served, &bytes, &cuts, eager);
        let (expect, found) = (sorted(&expect), sorted(&found));
        assert!(expect.0 == found.0, "seed {seed}: the handshake differs, cut at {cuts:?}");
        // Kind, cookie, and of an error its number; its text may differ, and data of a read that a write overtook.
        let told = |(_, reply): &(u64, Vec<u8>)| (reply[..16].to_vec(), reply.get(20..24).map(<[u8]>::to_vec));
        let told = |replies: &[(u64, Vec<u8>)]| replies.iter().map(told).collect::<Vec<_>>();
        assert_eq!(told(&expect.1), told(&found.1), "seed {seed}, cut at {cuts:?}");
        served.server.reap_hangups();
        assert_eq!(served.open(), 0);
    }
}

/// Every byte of a request header and of a payload, one at a time.
#[test]
fn at_every_byte_of_a_request() {
    let mut served = Served::memory();
    let mut raw = Raw::go(&served.socket(), "mem", true);
    let mut bytes = Vec::new();
    request(&mut bytes, Command::Write, 0, 7, 4096, 512);
    bytes.extend((0..512).map(|i| i as u8));
    for (at, byte) in bytes.iter().enumerate() {
        raw.stream.write_all(&[*byte]).expect("sent");
        if at < 40 || at % 50 == 0 || at > 535 {
            served.hand_over(1);
        }
    }
    assert!(matches!(raw.answer(), (7, Answer::Done)));
    let expect: Vec<u8> = (0..512).map(|i| i as u8).collect();
    assert_eq!(raw.read(4096, 512), expect);
}

/// A device that keeps its bios: the server goes on as before.
#[test]
fn what_cannot_be_paused_goes_on() {
    let device = Arc::new(Recorder::new(1 << 20, Limits::default()));
    let mut served = Served::device(device.clone());
    let mut raw = Raw::go(&served.socket(), "dev", true);
    device.hold();
    raw.send(Command::Write, 0, 0, 4096, &[1; 4096]);
    device.await_held(1);
    assert!(!served.server.pause(Duration::from_millis(20)));
    let mut other = Raw::go(&served.socket(), "dev", true);
    other.send(Command::Read, 0, SIZE, 512, b"");
    assert_eq!(other.answer().1, Answer::Failed(NbdError::Inval), "others are served");
    device.release_in_reverse();
    assert_eq!(raw.answer().1, Answer::Done);
    served.hand_over(2);
    assert_eq!(raw.read(0, 4096), [1; 4096]);
    assert_eq!(other.read(0, 4096), [1; 4096]);
}

/// A read that its client does not take, a write of which a part has come, and a question that the device does not
/// answer: the next server goes on with what is left of each, and a pause waits for none.
#[test]
fn long_requests_go_on() {
    let device = Arc::new(Recorder::new(SIZE, Limits::default()));
    let mut served = Served::timeless(device.clone());
    let place = |at: u64, len: usize| (0..len as u64).map(|i| ((at + i) / 512 * 7) as u8).collect::<Vec<u8>>();
    let mut raw = Raw::go(&served.socket(), "dev", true);
    raw.write(0, &place(0, 16 << 20));
    let mut whole = Raw::go(&served.socket(), "dev", false);
    let read = raw.send(Command::Read, 0, 0, 16 << 20, b"");
    whole.send(Command::Read, 0, 4096, 15 << 20, b"");
    let mut writer = Raw::go(&served.socket(), "dev", true);
    let data = place(1, 5 << 20);
    let header = writer.header(Command::Write as u16, cmd_flag::FUA, 32 << 20, data.len() as u32);
    writer.stream.write_all(&header).expect("sent");
    device.silent.store(true, Ordering::SeqCst);
    let mut asker = Raw::go(&served.socket(), "dev", true);
    asker.send(Command::BlockStatus, cmd_flag::REQ_ONE, 0, 1 << 20, b"");
    let cuts = [0, 1000, (2 << 20) - 100, (4 << 20) + 5000];
    for cut in cuts.windows(2) {
        writer.stream.write_all(&data[cut[0]..cut[1]]).expect("sent");
        served.hand_over(1);
    }
    writer.stream.write_all(&data[cuts[3]..]).expect("sent");
    assert_eq!(writer.answer().1, Answer::Done);
    assert!(writer.read(32 << 20, data.len() as u32) == data, "the write's bytes differ");
    assert!(raw.answer() == (read, Answer::Data(place(0, 16 << 20))), "the read's bytes differ");
    assert!(whole.answer().1 == Answer::Data(place(4096, 15 << 20)), "the bytes of the whole read differ");
    assert_eq!(asker.send(Command::Flush, 0, 0, 0, b""), asker.answer().0);
    drop(std::mem::take(&mut *device.questions.lock().expect("unpoisoned")));
    assert!(matches!(asker.answer().1, Answer::Status(found) if found[0].length == 1 << 20));
}

/// A clock that lets a device go on when the thread that has made it asks for the time.
struct Releasing {
    who: std::thread::ThreadId,
    device: Mutex<Option<Arc<Recorder>>>,
}

impl udm_io::Clock for Releasing {
    fn now(&self) -> udm_io::Nanos {
        if std::thread::current().id() == self.who
            && let Some(device) = self.device.lock().expect("unpoisoned").take()
        {
            device.release_in_reverse();
        }
        udm_io::Nanos(1)
    }
}

/// A payload whose end waits until its connection may hold more has come together with the requests behind it. When the
/// device is done during the pause, all of it passes.
#[test]
fn what_follows_a_payload_that_waits_goes_on() {
    let device = Arc::new(Recorder::new(SIZE, Limits::default()));
    let clock = Arc::new(Releasing { who: std::thread::current().id(), device: Mutex::default() });
    let domain = DomainBuilder::default().clock(clock.clone()).build();
    let devices = vec![("dev".into(), device.clone() as Arc<dyn BlockDevice>, false)];
    let mut served = Served::start(domain, Server::builder().threads(1), devices);
    let [mut raw, mut other] = [(); 2].map(|()| Raw::go(&served.socket(), "dev", true));
    device.hold();
    // Four MiB are all that a connection holds.
    let data: Vec<u8> = (0..(4 << 20) + 512).map(|i| (i / 512 * 7) as u8).collect();
    let mut bytes = raw.header(Command::Write as u16, 0, 0, data.len() as u32);
    bytes.extend(&data);
    let write = raw.header(Command::Write as u16, 0, 8 << 20, 512);
    bytes.extend([write, vec![9; 512], raw.header(Command::Cache as u16, 0, 0, 0)].concat());
    let (before, end) = bytes.split_at(bytes.len() - 100_000);
    raw.stream.write_all(before).expect("sent");
    device.await_held(3);
    // What is left comes at once.
    let (reached, wait) = std::sync::mpsc::channel();
    let (go, went) = std::sync::mpsc::channel::<()>();
    *device.before.lock().expect("unpoisoned") = Some(Box::new(move |_| {
        let _ = reached.send(());
        let _ = went.recv();
    }));
    other.send(Command::Flush, 0, 0, 0, b"");
    wait.recv().expect("a flush");
    raw.stream.write_all(end).expect("100 KB fit the socket");
    drop(go);
    device.await_held(5);
    assert_eq!(other.ask(Command::Cache, 0, 0, 0, b""), Answer::Done);

    *clock.device.lock().expect("unpoisoned") = Some(device.clone());
    served.hand_over(1);
    let mut answers: Vec<_> = (0..3).map(|_| raw.answer()).collect();
    answers.sort_by_key(|(cookie, _)| *cookie);
    assert_eq!(answers, (1..4).map(|cookie| (cookie, Answer::Done)).collect::<Vec<_>>());
    assert!(raw.read(0, data.len() as u32) == data, "the write's bytes differ");
    assert_eq!(raw.read(8 << 20, 512), [9; 512]);
}

/// What another process says is checked.
#[test]
fn states_that_cannot_be() {
    let served = Served::memory();
    let _raw = Raw::go(&served.socket(), "mem", true);
    assert!(served.server.pause(Duration::from_secs(20)));
    let good = served.server.hand_over().connections.remove(0);
    let text = serde_json::to_string(&good.state).expect("text");
    for (from, to, input) in [
        ("\"structured\":true", "\"structured\":1", 0),
        ("\"receiving\":\"header\"", "\"receiving\":\"tail\"", 0),
        ("\"ended\":false", "\"ended\":false,\"more\":1", 0),
        ("\"receiving\":\"header\"", "\"receiving\":\"header\"", 1 << 20),
        ("[512,", "[511,", 0),
        ("[512,4096,33554432]", "[512,4096,4294967295]", 0),
        (
            "\"receiving\":\"header\"",
            r#""receiving":{"payload":{"cookie":1,"start":0,"length":1,"durability":"cached"}}"#,
            1 << 20,
        ),
        (
            "\"receiving\":\"header\"",
            r#""receiving":{"payload":{"cookie":1,"start":0,"length":18446744073709551615,"durability":"cached"}}"#,
            0,
        ),
        (
            "\"receiving\":\"header\"",
            r#""receiving":{"payload":{"cookie":1,"start":18446744073709551615,"length":8,"durability":"cached"}}"#,
            0,
        ),
        ("\"export\":\"mem\"", "\"export\":\"gone\"", 0),
        ("\"longs\":[]", r#""longs":[{"cookie":1,"start":0,"length":0,"durability":"cached","what":"trim"}]"#, 0),
        ("\"longs\":[]", r#""longs":[{"cookie":1,"start":131071,"length":2,"durability":"cached","what":"trim"}]"#, 0),
        (
            "\"longs\":[]",
            r#""longs":[{"cookie":1,"start":0,"length":65537,"durability":"cached","what":{"read":{"chunks":false}}}]"#,
            0,
        ),
    ] {
        assert!(text.contains(from), "{text} lacks {from}");
        let Ok(state) = serde_json::from_str::<ConnectionState>(&text.replace(from, to)) else { continue };
        let socket = good.socket.try_clone().expect("a clone");
        let handed = udm_export::nbd::HandedConnection { socket, state, input: vec![0; input], unsent: Vec::new() };
        assert!(handed.prepare(&*served.exports()).is_err(), "{to}");
    }
}
