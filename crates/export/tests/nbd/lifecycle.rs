//! Starting, stopping and hanging up.

use crate::device::{ByHand, Recorder};
use crate::raw::{Answer, Raw};
use crate::served::{Devices, Served};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use udm_export::Listen;
use udm_export::nbd::Server;
use udm_io::{Domain, DomainBuilder, Limits};
use udm_nbd::wire::consts::{opt, rep};
use udm_nbd::wire::{Command, NbdError};

#[test]
fn hangups_are_reaped_before_the_call_returns() {
    let served = Served::memory();
    for _ in 0..100 {
        let mut raw = Raw::go(&served.socket(), "mem", true);
        raw.write(0, &[1; 512]);
        assert_eq!(served.open(), 1);
        raw.send(Command::Disc, 0, 0, 0, b"");
        drop(raw);
        assert!(served.server.reap_hangups());
        assert_eq!((served.open(), served.server.connections()), (0, 0));
    }
}

#[test]
fn a_soft_disconnect_answers_what_was_asked_before() {
    let device = Arc::new(Recorder::new(1 << 20, Limits::default()));
    let served = Served::device(device.clone());
    let mut raw = Raw::go(&served.socket(), "dev", true);
    device.hold();
    raw.send(Command::Write, 0, 0, 4096, &[1; 4096]);
    raw.send(Command::Disc, 0, 0, 0, b"");
    device.await_held(1);
    assert_eq!(served.open(), 1, "open as long as a bio is out");
    device.release_in_reverse();
    assert_eq!(raw.answer().1, Answer::Done);
    assert!(raw.is_hung_up());
}

#[test]
fn a_half_close_still_gets_its_answers() {
    let served = Served::memory();
    let mut raw = Raw::go(&served.socket(), "mem", true);
    raw.send(Command::Read, 0, 0, 1 << 20, b"");
    raw.stream.shutdown(std::net::Shutdown::Write).expect("half closed");
    assert!(matches!(raw.answer().1, Answer::Data(data) if data.len() == 1 << 20));
    assert!(raw.is_hung_up());
}

/// A client that has gone while its bios are out: they end, then the export closes. Others are not held up.
#[test]
fn a_client_that_went_is_remembered_until_its_bios_end() {
    let device = Arc::new(Recorder::new(1 << 20, Limits::default()));
    let served = Served::device(device.clone());
    let mut raw = Raw::go(&served.socket(), "dev", true);
    device.hold();
    for i in 0..10 {
        raw.send(if i % 2 == 0 { Command::Read } else { Command::Write }, 0, 0, 4096, &vec![1; i % 2 * 4096]);
    }
    device.await_held(10);
    drop(raw);
    assert!(!served.server.reap_hangups(), "its bios are still out");
    assert_eq!(served.open(), 1);
    device.release_in_reverse();
    assert!(served.server.reap_hangups());
    assert_eq!(served.open(), 0);
}

#[test]
fn an_export_can_be_taken_away_from_its_clients() {
    let served = Served::memory();
    let mut gone: Vec<Raw> = (0..5).map(|_| Raw::go(&served.socket(), "mem", true)).collect();
    let mut stays = Raw::go(&served.socket(), "ro", true);
    assert_eq!(served.server.disconnect("mem"), 5);
    assert!(gone.iter_mut().all(Raw::is_hung_up));
    assert_eq!(stays.read(0, 512), vec![0; 512]);
    assert_eq!(served.server.disconnect("nope"), 0);
}

#[test]
fn a_shutdown_finishes_what_is_under_way_and_refuses_the_rest() {
    let device = Arc::new(Recorder::new(1 << 20, Limits::default()));
    let served = Served::device(device.clone());
    let mut raw = Raw::go(&served.socket(), "dev", true);
    let mut talking = Raw::connect(&served.socket());
    talking.option(opt::LIST, b"");
    device.hold();
    raw.send(Command::Write, 0, 0, 4096, &[1; 4096]);
    device.await_held(1);
    std::thread::scope(|scope| {
        scope.spawn(|| served.server.shut_down(Duration::from_secs(20)));
        // The handshake ends at once; then the server is known to shut down.
        assert!(talking.is_hung_up());
        device.release_in_reverse();
        assert_eq!(raw.answer().1, Answer::Done);
        assert!(raw.is_hung_up());
    });
    assert_eq!(served.open(), 0);
    assert!(!served.socket().exists(), "the socket's file goes with the server");
    assert!(served.server.reap_hangups(), "nothing is left to reap");
    assert_eq!(served.server.disconnect("dev"), 0);
}

/// What a client sent before the server began to shut down, but the server did not get to, is refused by name.
#[test]
fn requests_in_the_socket_at_shutdown_get_eshutdown() {
    let device = Arc::new(Recorder::new(8 << 20, Limits::default()));
    let served = Served::device(device.clone());
    let mut raw = Raw::go(&served.socket(), "dev", true);
    device.hold();
    // Fills what the connection may hold, so that the last one waits.
    for _ in 0..4 {
        raw.send(Command::Read, 0, 0, 1 << 20, b"");
    }
    device.await_held(4);
    let late = raw.send(Command::Read, 0, 0, 1 << 20, b"");
    std::thread::scope(|scope| {
        scope.spawn(|| served.server.shut_down(Duration::from_secs(20)));
        assert_eq!(raw.answer(), (late, Answer::Failed(NbdError::Shutdown)));
        device.release_in_reverse();
        for _ in 0..4 {
            assert!(matches!(raw.answer().1, Answer::Data(_)));
        }
        assert!(raw.is_hung_up());
    });
}

/// Patience ends: a device that does not finish keeps neither the server nor, later, its memory busy.
#[test]
fn a_shutdown_does_not_wait_for_ever() {
    let device = Arc::new(Recorder::new(1 << 20, Limits::default()));
    let served = Served::device(device.clone());
    let mut raw = Raw::go(&served.socket(), "dev", true);
    device.hold();
    raw.send(Command::Read, 0, 0, 4096, b"");
    device.await_held(1);
    served.server.shut_down(Duration::from_millis(10));
    // The bio's memory is still there to be read into.
    device.release_in_reverse();
}

#[test]
fn the_socket_is_the_owners_and_a_stale_one_is_replaced() {
    let served = Served::memory();
    let mode = std::fs::metadata(served.socket()).expect("the socket's file").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let start = |path: std::path::PathBuf| {
        let exports = Arc::new(Devices::none());
        Server::builder().listen(Listen::Unix(path)).start(&Domain::default(), exports)
    };
    let error = start(served.socket()).err().expect("one server a socket").to_string();
    assert!(error.contains("another server listens"), "{error}");

    let stale = served.dir.path().join("stale.sock");
    drop(UnixListener::bind(&stale).expect("bound"));
    let server = start(stale.clone()).expect("a stale socket is replaced");
    drop(server);
    std::fs::write(&stale, b"precious").expect("written");
    let error = start(stale.clone()).err().expect("a file is not").to_string();
    assert!(error.contains("no socket"), "{error}");
    assert_eq!(std::fs::read(&stale).expect("still there"), b"precious");
    let error = start(served.dir.path().join("x".repeat(200))).err().expect("too long").to_string();
    assert!(error.contains("107 bytes"), "{error}");
}

#[test]
fn too_many_clients_are_told_so() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("s");
    let builder = Server::builder().listen(Listen::Unix(path.clone())).max_connections(2);
    let _server = builder.start(&Domain::default(), Arc::new(Devices::none())).expect("a server");
    let mut first = Raw::connect(&path);
    let second = Raw::connect(&path);
    let mut third = Raw::connect(&path);
    let told = third.option(opt::STRUCTURED_REPLY, b"");
    assert_eq!(told, [(rep::ERR_POLICY, b"2 NBD clients are connected, of 2 that may be".to_vec())]);
    assert!(third.is_hung_up());
    drop(second);
    assert_eq!(first.option(opt::LIST, b""), [(rep::ACK, vec![])]);
}

/// A client that does not get on with its handshake is hung up on; one that has an export may be silent.
#[test]
fn a_handshake_ends_in_time() {
    let clock = Arc::new(ByHand(1.into()));
    let domain = DomainBuilder::default().clock(clock.clone()).build();
    let device = Arc::new(Recorder::new(1 << 20, Limits::default()));
    let devices = vec![("dev".into(), device as Arc<dyn udm_io::BlockDevice>, false)];
    let served = Served::start(domain, Server::builder().threads(1), devices);
    let mut quiet = Raw::go(&served.socket(), "dev", true);
    let mut silent = std::os::unix::net::UnixStream::connect(served.socket()).expect("the kernel takes it");
    let mut talking = Raw::connect(&served.socket());
    talking.option(opt::LIST, b"");
    clock.0.store(9_000_000_000, Ordering::SeqCst);
    let mut late = Raw::connect(&served.socket());
    assert_eq!(late.option(opt::LIST, b"").len(), 2);
    clock.0.store(11_000_000_000, Ordering::SeqCst);
    assert!(talking.is_hung_up());
    std::io::Read::read_to_end(&mut silent, &mut Vec::new()).expect("a greeting, then the end");
    assert_eq!(late.option(opt::LIST, b"").len(), 2);
    assert_eq!(quiet.read(0, 512), vec![0; 512]);
}
