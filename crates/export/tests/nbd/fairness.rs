//! What one client asks for costs the others little, whether it stays, stops or goes.

use crate::device::{ByHand, Recorder};
use crate::raw::{Answer, Raw};
use crate::served::Served;
use std::io::{Read, Write};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc;
use udm_base::Sectors;
use udm_export::nbd::Server;
use udm_io::{BlockDevice, Domain, DomainBuilder, Limits, Op};
use udm_nbd::wire::Command;
use udm_nbd::wire::consts::{cmd_flag, opt};
use udm_nbd::wire::option::put_option;
use udm_nbd::wire::reply::StatusExtent;

const MIB: u32 = 1 << 20;
const SIZE: u64 = 64 << 20;

/// A device that can zero nothing by itself.
fn plain() -> Limits {
    Limits { max_discard: Sectors::ZERO, max_write_zeroes: Sectors::ZERO, ..Limits::default() }
}

/// Serves `device` to `ask`, and to another client whose write of 4 KiB is in the server's socket when the second bio
/// of what was asked is served. Returns how many bios of the first came before that write.
fn bios_before_anothers_write(device: Arc<Recorder>, structured: bool, ask: impl FnOnce(&mut Raw)) -> usize {
    let served = Served::device(device.clone());
    let mut large = Raw::go(&served.socket(), "dev", structured);
    let mut small = Raw::go(&served.socket(), "dev", true);
    let (reached, wait) = mpsc::channel();
    let (go, gone) = mpsc::channel::<()>();
    *device.before.lock().expect("unpoisoned") = Some(Box::new(move |number| {
        if number == 2 {
            let _ = reached.send(());
            let _ = gone.recv();
        }
    }));
    ask(&mut large);
    std::thread::scope(|scope| {
        scope.spawn(|| large.answer());
        wait.recv().expect("a second bio");
        small.send(Command::Write, 0, SIZE - 4096, 4096, &[1; 4096]);
        go.send(()).expect("the device waits");
        assert_eq!(small.answer().1, Answer::Done);
    });
    let seen = device.seen.lock().expect("unpoisoned").clone();
    seen.iter().position(|s| s.sector == (SIZE - 4096) / 512).expect("the write")
}

/// Zeroes that are written out, a device's own zeroes and discards, reads: each in pieces between which others are
/// served.
#[test]
fn a_long_request_lets_others_through() {
    let before = |limits: Limits, structured, command: Command, flags| {
        let device = Arc::new(Recorder::new(SIZE, limits));
        let length = if command == Command::Read { 32 * MIB } else { 63 * MIB };
        bios_before_anothers_write(device, structured, |raw| {
            raw.send(command, flags, 0, length, b"");
        })
    };
    let able = Limits::default();
    for (what, limits, structured, command, flags) in [
        ("zeroes written out", plain(), true, Command::WriteZeroes, 0),
        ("zeroes that stay allocated", able, true, Command::WriteZeroes, cmd_flag::NO_HOLE),
        ("a read in chunks", able, true, Command::Read, 0),
        ("a read in one chunk", able, true, Command::Read, cmd_flag::DF),
        ("a read with a simple reply", able, false, Command::Read, 0),
    ] {
        let bios = before(limits, structured, command, flags);
        assert!((2..8).contains(&bios), "{what}: {bios} bios came before another client's write");
    }
}

/// A client that asks for much and goes at once: what it was not given yet is not read any more.
#[test]
fn a_client_that_went_is_not_read_for() {
    for (structured, length) in [(true, 4 * MIB), (false, 4 * MIB), (true, 4096)] {
        let device = Arc::new(Recorder::new(SIZE, Limits::default()));
        let served = Served::device(device.clone());
        let mut gone = Raw::go(&served.socket(), "dev", structured);
        device.hold();
        let bytes: Vec<u8> = (0..2000).flat_map(|_| gone.header(Command::Read as u16, 0, 0, length)).collect();
        gone.stream.write_all(&bytes).expect("56 KB fit the socket");
        device.await_held(1);
        drop(gone);
        device.release_in_reverse();
        assert!(served.server.reap_hangups());
        let sectors: u64 = device.seen.lock().expect("unpoisoned").iter().map(|s| s.sectors).sum();
        assert!(sectors * 512 <= 8 << 20, "{} KiB were read for a client that had gone", sectors / 2);
    }
}

/// Nor is what it wanted zeroed or discarded gone on with.
#[test]
fn a_client_that_went_leaves_no_long_work_behind() {
    for (limits, command) in [(plain(), Command::WriteZeroes), (Limits::default(), Command::Trim)] {
        let device = Arc::new(Recorder::new(SIZE, limits));
        let served = Served::device(device.clone());
        let mut gone = Raw::go(&served.socket(), "dev", true);
        device.hold();
        let bytes: Vec<u8> = (0..2000).flat_map(|_| gone.header(command as u16, 0, 0, 60 * MIB)).collect();
        gone.stream.write_all(&bytes).expect("56 KB fit the socket");
        device.await_held(1);
        drop(gone);
        // Every bio that is out now is served; none follows.
        while !served.server.reap_hangups() {
            device.release_in_reverse();
        }
        let bios = device.seen.lock().expect("unpoisoned").len();
        assert!(bios <= 256, "{bios} bios of a client that had gone");
    }
}

/// A read is given up while some of its pieces are with the device and another is about to begin.
#[test]
fn a_read_that_is_given_up_between_two_pieces_begins_no_other() {
    for structured in [false, true] {
        let device = Arc::new(Recorder::new(SIZE, Limits::default()));
        let served = Served::device(device.clone());
        let mut gone = Raw::go(&served.socket(), "dev", structured);
        let mut other = Raw::go(&served.socket(), "dev", true);
        let (reached, wait) = mpsc::channel();
        let (go, went) = mpsc::channel::<()>();
        *device.before.lock().expect("unpoisoned") = Some(Box::new(move |number| {
            if number == 2 {
                let _ = reached.send(());
                let _ = went.recv();
            }
        }));
        device.hold();
        gone.send(Command::Read, 0, 0, 8 * MIB, b"");
        wait.recv().expect("a second piece");
        drop(gone);
        go.send(()).expect("the device waits");
        rounds(&mut other, 4);
        assert_eq!(device.held(), 2, "a piece began for a client that had gone");
        device.release_in_reverse();
        assert!(served.server.reap_hangups());
        other.write(0, &[1; 512]);
    }
}

/// The device finds out that it cannot zero when nobody is there any more: nothing is written instead.
#[test]
fn zeroes_are_not_written_for_a_client_that_went() {
    let device = Arc::new(Recorder::new(SIZE, Limits::default()));
    let served = Served::device(device.clone());
    let mut gone = Raw::go(&served.socket(), "dev", true);
    let mut other = Raw::go(&served.socket(), "dev", true);
    device.hold();
    gone.send(Command::WriteZeroes, 0, 0, 60 * MIB, b"");
    device.await_held(1);
    drop(gone);
    rounds(&mut other, 1);
    device.zeroes_nothing.store(true, Ordering::SeqCst);
    device.release_in_reverse();
    assert!(served.server.reap_hangups());
    let seen = device.seen.lock().expect("unpoisoned").clone();
    assert_eq!(seen.iter().map(|s| s.op).collect::<Vec<_>>(), [Op::WriteZeroes]);
}

/// Has the server go round at least so often: each answer is of one round.
fn rounds(client: &mut Raw, count: usize) {
    for _ in 0..count {
        assert_eq!(client.ask(Command::Cache, 0, 0, 0, b""), Answer::Done);
    }
}

/// Sends as much as the socket takes.
fn send_some(raw: &mut Raw, bytes: &mut &[u8]) {
    raw.stream.set_nonblocking(true).expect("a socket");
    while !bytes.is_empty() {
        match raw.stream.write(bytes) {
            Ok(sent) => *bytes = &bytes[sent..],
            Err(error) => {
                assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
                break;
            }
        }
    }
    raw.stream.set_nonblocking(false).expect("a socket");
}

/// Pieces of long requests that a device does not finish take no more memory than there is, however small they are.
/// When it goes on, so does every request.
#[test]
fn small_pieces_of_many_clients_are_within_the_limit() {
    const LIMIT: u64 = MIB as u64;
    for command in [Command::Read, Command::Write] {
        let device = Arc::new(Recorder::new(SIZE, Limits::default()));
        let devices = vec![("dev".into(), device.clone() as Arc<dyn BlockDevice>, false)];
        let served = Served::start(Domain::default(), Server::builder().threads(1).memory(LIMIT as usize), devices);
        let mut clients: Vec<Raw> = (0..4).map(|_| Raw::go(&served.socket(), "dev", true)).collect();
        let mut other = Raw::go(&served.socket(), "dev", true);
        device.hold();
        let (count, length) = if command == Command::Read { (16, MIB / 2) } else { (1, 8 * MIB) };
        let bytes: Vec<Vec<u8>> = clients
            .iter_mut()
            .map(|raw| {
                let mut bytes: Vec<u8> = (0..count).flat_map(|_| raw.header(command as u16, 0, 0, length)).collect();
                bytes.resize(bytes.len() + if command == Command::Write { length as usize } else { 0 }, 7);
                bytes
            })
            .collect();
        let mut left: Vec<&[u8]> = bytes.iter().map(Vec::as_slice).collect();
        for _ in 0..100 {
            clients.iter_mut().zip(&mut left).for_each(|(raw, bytes)| send_some(raw, bytes));
            rounds(&mut other, 1);
        }
        let held: u64 = device.seen.lock().expect("unpoisoned").iter().map(|s| s.sectors * 512).sum();
        // Each has one piece in any case.
        assert!(held <= LIMIT + 5 * 65536, "{command:?}: {} KiB are held, of {} KiB", held >> 10, LIMIT >> 10);
        device.release_in_reverse();
        for (raw, bytes) in clients.iter_mut().zip(left) {
            raw.stream.write_all(bytes).expect("sent");
            (0..count).for_each(|_| assert!(!matches!(raw.answer().1, Answer::Failed(_))));
        }
    }
}

/// Questions whose answers may be long are asked as far as there is memory for these; all are answered in the end.
#[test]
fn answers_to_questions_are_within_the_limit() {
    let device = Arc::new(Recorder::new(SIZE, Limits::default()));
    let devices = vec![("dev".into(), device.clone() as Arc<dyn BlockDevice>, false)];
    let clock = Arc::new(ByHand(1.into()));
    let domain = DomainBuilder::default().clock(clock).build();
    let served = Served::start(domain, Server::builder().threads(1).memory(MIB as usize), devices);
    let mut clients: Vec<Raw> = (0..4).map(|_| Raw::go(&served.socket(), "dev", true)).collect();
    let mut other = Raw::go(&served.socket(), "dev", true);
    device.silent.store(true, Ordering::SeqCst);
    for raw in &mut clients {
        let asked: Vec<u8> = (0..200).flat_map(|_| raw.header(Command::BlockStatus as u16, 0, 0, MIB)).collect();
        raw.stream.write_all(&asked).expect("6 KB fit the socket");
    }
    rounds(&mut other, 20);
    let questions = std::mem::take(&mut *device.questions.lock().expect("unpoisoned"));
    // 64 KiB each, and each client may have one in any case.
    assert!(questions.len() <= 16 + 4, "{} long answers at a time", questions.len());
    device.silent.store(false, Ordering::SeqCst);
    drop(questions);
    for raw in &mut clients {
        (0..200).for_each(|_| assert!(matches!(raw.answer().1, Answer::Status(_))));
    }
}

/// Who waits for memory goes on when there is enough, also when some was taken and as much was given back since it was
/// looked at last.
#[test]
fn memory_that_is_given_back_while_more_is_taken_is_noticed() {
    let device = Arc::new(Recorder::new(SIZE, Limits::default()));
    let devices = vec![("dev".into(), device.clone() as Arc<dyn BlockDevice>, false)];
    // What is held as a whole leaves a quarter to others: 3 MiB.
    let builder = Server::builder().threads(1).memory(4 << 20);
    let served = Served::start(Domain::default(), builder, devices);
    let [mut taker, mut waiter, mut giver] = [(); 3].map(|()| Raw::go(&served.socket(), "dev", false));
    let [mut holder, mut other] = [(); 2].map(|()| Raw::go(&served.socket(), "dev", true));
    // The end of its answer does not fit the socket: the last MiB is held.
    giver.send(Command::Read, 0, 0, 2 * MIB, b"");
    let mut answer = vec![0; 16 + 2 * MIB as usize];
    let all_but = answer.len() - 300_000;
    giver.stream.read_exact(&mut answer[..all_but]).expect("an answer");
    rounds(&mut other, 4);
    let (reached, wait) = mpsc::channel();
    let (go, went) = mpsc::channel::<()>();
    *device.before.lock().expect("unpoisoned") = Some(Box::new(move |_| {
        let _ = reached.send(());
        let _ = went.recv();
    }));
    holder.send(Command::Flush, 0, 0, 0, b"");
    wait.recv().expect("a flush");
    // In this order, within one round: a MiB is taken, 2 MiB are wanted, and a MiB is given back.
    taker.send(Command::Read, 0, 0, MIB, b"");
    waiter.send(Command::Read, 0, 0, 2 * MIB, b"");
    giver.stream.set_nonblocking(true).expect("a socket");
    while giver.stream.read(&mut answer).is_ok() {}
    drop(go);
    assert_eq!(holder.answer().1, Answer::Done);
    assert!(matches!(waiter.answer().1, Answer::Data(data) if data.len() == 2 << 20));
}

/// Clients that announce large writes and stop sending take no memory that others need for theirs.
#[test]
fn stalled_writers_do_not_keep_others_out() {
    let device = Arc::new(Recorder::new(SIZE, Limits::default()));
    let devices = vec![("dev".into(), device as Arc<dyn BlockDevice>, false)];
    let served = Served::start(Domain::default(), Server::builder().threads(1).memory(32 << 20), devices);
    let mut stalled: Vec<Raw> = (0..100).map(|_| Raw::go(&served.socket(), "dev", true)).collect();
    for raw in &mut stalled {
        let half = [raw.header(Command::Write as u16, 0, 0, 32 * MIB), vec![1; 30_000]].concat();
        raw.stream.write_all(&half).expect("sent");
    }
    let mut others = [Raw::go(&served.socket(), "dev", true), Raw::go(&served.socket(), "dev", false)];
    for raw in &mut others {
        for len in [4096, 128 << 10, 1 << 20, 8 << 20] {
            let data: Vec<u8> = (0..len).map(|i| (i / 512) as u8 ^ len as u8).collect();
            raw.write(32 << 20, &data);
            assert!(raw.read(32 << 20, len) == data, "{len} bytes differ");
        }
    }
    assert_eq!(served.open(), 102, "nobody was hung up on for it");
}

/// A device that does not say what it holds keeps the client that asked waiting, and nobody else. When that client
/// goes, nothing of it stays.
#[test]
fn a_device_that_does_not_answer_holds_up_nobody_else() {
    let device = Arc::new(Recorder::new(SIZE, Limits::default()));
    let served = Served::timeless(device.clone());
    let mut asker = Raw::go(&served.socket(), "dev", true);
    let mut other = Raw::go(&served.socket(), "dev", true);
    device.silent.store(true, Ordering::SeqCst);
    let first = asker.send(Command::BlockStatus, 0, 0, MIB, b"");
    let second = asker.send(Command::Read, 0, 0, 512, b"");
    assert_eq!(asker.answer(), (second, Answer::Data(vec![0; 512])));
    other.write(0, &[1; 512]);
    device.await_question();
    let reply = device.questions.lock().expect("unpoisoned").pop().expect("a question");
    device.silent.store(false, Ordering::SeqCst);
    drop(reply);
    assert!(matches!(asker.answer(), (cookie, Answer::Status(all)) if cookie == first && all[0].length == MIB));
    device.silent.store(true, Ordering::SeqCst);
    asker.send(Command::BlockStatus, 0, 0, MIB, b"");
    asker.send(Command::Flush, 0, 0, 0, b"");
    assert_eq!(asker.answer().1, Answer::Done);
    drop(asker);
    assert!(served.server.reap_hangups(), "a question does not keep a connection");
    assert_eq!(served.open(), 1);
    other.write(0, &[2; 512]);
    assert!(device.seen.lock().expect("unpoisoned").iter().all(|s| s.op != Op::Discard));
}

/// A device that goes on saying nothing is taken to hold data, in the end.
#[test]
fn a_device_that_never_answers_holds_data() {
    let clock = Arc::new(ByHand(1.into()));
    let domain = DomainBuilder::default().clock(clock.clone()).build();
    let device = Arc::new(Recorder::new(SIZE, Limits::default()));
    let devices = vec![("dev".into(), device.clone() as Arc<dyn BlockDevice>, false)];
    let served = Served::start(domain, Server::builder().threads(1), devices);
    let mut asker = Raw::go(&served.socket(), "dev", true);
    device.silent.store(true, Ordering::SeqCst);
    let asked = asker.send(Command::BlockStatus, 0, 0, MIB, b"");
    device.await_question();
    clock.0.store(6_000_000_000, Ordering::SeqCst);
    let data = vec![StatusExtent { length: MIB, flags: 0 }];
    assert_eq!(asker.answer(), (asked, Answer::Status(data)));
    // Its answer comes too late for anybody.
    drop(std::mem::take(&mut *device.questions.lock().expect("unpoisoned")));
    device.silent.store(false, Ordering::SeqCst);
    assert!(matches!(asker.ask(Command::BlockStatus, 0, 0, MIB, b""), Answer::Status(all) if all.len() == 3));
}

/// A client that asks for the list of exports without end, and takes it, is one of many.
#[test]
fn options_are_answered_in_turns() {
    let served = Served::device(Arc::new(Recorder::new(SIZE, Limits::default())));
    let mut other = Raw::go(&served.socket(), "dev", true);
    let mut asker = Raw::connect(&served.socket());
    let mut bytes = Vec::new();
    (0..2000).for_each(|_| put_option(&mut bytes, opt::LIST, b""));
    asker.stream.write_all(&bytes).expect("32 KB fit the socket");
    other.write(0, &[1; 4096]);
    for _ in 0..2000 {
        assert_eq!(asker.replies(opt::LIST).len(), 2);
    }
    assert_eq!(other.read(0, 4096), [1; 4096]);
}
