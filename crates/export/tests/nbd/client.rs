//! udm's own client, against udm's server and against others.

use crate::device::{Failing, Recorder};
use crate::raw::Raw;
use crate::served::{SIZE, Served};
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use udm_base::{Sector, Sectors};
use udm_io::{
    BlockDevice, BlockingIo, Clock, Domain, DomainBuilder, Extent, ExtentKind, Limits, Nanos, Op, OpFlags, Status,
};
use udm_nbd::NbdDevice;
use udm_nbd::uri::Uri;
use udm_nbd::wire::consts::{handshake, opt, rep, transmission};
use udm_nbd::wire::option::{greeting, put_reply};
use udm_testing::until;

pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) fn connect(domain: &Domain, uri: &str) -> Result<Arc<NbdDevice>, String> {
    let uri: Uri = uri.parse().expect("a URI");
    NbdDevice::connect(&uri, domain, PATIENCE, &|| false).map_err(|e| e.to_string())
}

fn pattern(seed: u8, len: usize) -> Vec<u8> {
    (0..len).map(|i| (i as u32).wrapping_mul(2_654_435_761).to_be_bytes()[0] ^ seed).collect()
}

/// Writes and reads of many sizes, and everything else that a bio can ask.
fn exercise(domain: &Domain, device: Arc<NbdDevice>) {
    let limits = device.limits();
    let io = BlockingIo::new(domain, device).expect("a channel");
    for (i, sectors) in [1, 8, 127, 512, 2048, 8192].into_iter().enumerate() {
        let data = pattern(i as u8, sectors * 512);
        let flags = if i % 2 == 0 { OpFlags::NONE } else { OpFlags::FUA };
        io.write(Sector::new(i as u64), &data, flags).expect("written");
        let mut back = vec![0; data.len()];
        io.read(Sector::new(i as u64), &mut back).expect("read");
        assert!(back == data, "{sectors} sectors differ");
    }
    io.flush().expect("flushed");
    let mut back = vec![1; 4096];
    if !limits.max_write_zeroes.is_zero() {
        io.range(Op::WriteZeroes, OpFlags::NO_UNMAP, Sector::new(8), Sectors::new(8)).expect("zeroed");
        io.read(Sector::new(8), &mut back).expect("read");
        assert_eq!(back, [0; 4096]);
    }
    if !limits.max_discard.is_zero() {
        io.range(Op::Discard, OpFlags::NONE, Sector::new(64), Sectors::new(64)).expect("discarded");
    }
    let past = io.read(io.sectors().from_start(), &mut back);
    assert_eq!(past, Err(Status::Invalid));
}

#[test]
fn against_our_own_server() {
    let served = Served::memory();
    let device = connect(&served.domain, &served.uri("mem")).expect("connected");
    assert_eq!(device.sectors(), Sectors::in_bytes(SIZE));
    assert!(!device.read_only());
    assert_eq!(device.name().parse(), Ok(device.uri().clone()), "its name loads again");
    let limits = device.limits();
    assert_eq!((limits.logical_block_size, limits.max_sectors), (512, Sectors::in_bytes(32 << 20)));
    assert!(limits.fua && limits.write_cache && !limits.max_discard.is_zero());
    exercise(&served.domain, device);

    let read_only = connect(&served.domain, &served.uri("ro")).expect("connected");
    assert!(read_only.read_only());
    let io = BlockingIo::new(&served.domain, read_only).expect("a channel");
    assert_eq!(io.write(Sector::ZERO, &[0; 512], OpFlags::NONE), Err(Status::ReadOnly));
    io.read(Sector::ZERO, &mut [0; 512]).expect("read");
    drop(io);
    assert!(served.server.reap_hangups());
    assert_eq!(served.open(), 0, "a device that is dropped says goodbye");
}

#[test]
fn many_bios_of_many_channels_are_under_way_together() {
    let served = Served::memory();
    let device: Arc<dyn BlockDevice> = connect(&served.domain, &served.uri("mem")).expect("connected");
    std::thread::scope(|scope| {
        for thread in 0..3u64 {
            let (domain, device) = (&served.domain, device.clone());
            scope.spawn(move || {
                let channel = domain.channel().expect("a channel");
                let dev = channel.attach(device);
                let mut buffers: Vec<Vec<u8>> = (0..32).map(|_| vec![0; 8192]).collect();
                for round in 0..20u64 {
                    for op in [Op::Write, Op::Read] {
                        for (i, buffer) in buffers.iter_mut().enumerate() {
                            let sector = Sector::new((thread * 1000 + round * 32 + i as u64) * 16);
                            match op {
                                Op::Write => buffer.fill((thread + round * 7) as u8 ^ i as u8),
                                _ => buffer.fill(0xee),
                            }
                            // SAFETY: the buffers stay and are not touched until every completion was taken.
                            assert!(unsafe { channel.submit(dev, op, OpFlags::NONE, sector, buffer, i as u64) });
                        }
                        let mut left = buffers.len();
                        while left > 0 {
                            while let Some(done) = channel.completed() {
                                assert_eq!(done.status, Status::Ok);
                                left -= 1;
                            }
                            if left > 0 && channel.poll() == 0 {
                                channel.wait(None, &mut Vec::new()).expect("it can wait");
                            }
                        }
                    }
                    for (i, buffer) in buffers.iter().enumerate() {
                        assert!(buffer.iter().all(|b| *b == (thread + round * 7) as u8 ^ i as u8));
                    }
                }
            });
        }
    });
}

#[test]
fn extents_cross_the_wire() {
    let served = Served::device(Arc::new(Recorder::new(1 << 20, Limits::default())));
    let device = connect(&served.domain, &served.uri("dev")).expect("connected");
    let extent = |sectors, kind| Extent { sectors: Sectors::new(sectors), kind };
    let expect = [extent(8, ExtentKind::Data), extent(56, ExtentKind::Hole), extent(36, ExtentKind::Zero)];
    let io = BlockingIo::new(&served.domain, device).expect("a channel");
    assert_eq!(io.extents(Sector::ZERO, Sectors::new(100)), expect);
}

#[test]
fn errors_cross_the_wire() {
    for (status, expect) in [
        (Status::Io, Status::Io),
        (Status::NoSpace, Status::NoSpace),
        (Status::ReadOnly, Status::ReadOnly),
        (Status::Invalid, Status::Invalid),
    ] {
        let served = Served::device(Arc::new(Failing(status)));
        let io = BlockingIo::new(&served.domain, connect(&served.domain, &served.uri("dev")).expect("connected"));
        let io = io.expect("a channel");
        assert_eq!(io.read(Sector::ZERO, &mut [0; 4096]), Err(expect));
        assert_eq!(io.write(Sector::ZERO, &[0; 4096], OpFlags::NONE), Err(expect));
        assert_eq!(io.flush(), Err(expect));
    }
}

/// When the server goes, what is under way fails, and what comes later fails at once.
#[test]
fn a_lost_connection_fails_what_is_under_way() {
    let device = Arc::new(Recorder::new(1 << 20, Limits::default()));
    let served = Served::device(device.clone());
    let domain = Domain::default();
    let client = connect(&domain, &served.uri("dev")).expect("connected");
    device.hold();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            let io = BlockingIo::new(&domain, client.clone()).expect("a channel");
            let first = io.read(Sector::ZERO, &mut [0; 4096]);
            (first, io.write(Sector::ZERO, &[0; 512], OpFlags::NONE), io.flush())
        });
        device.await_held(1);
        served.server.shut_down(Duration::from_millis(1));
        assert_eq!(waiting.join().expect("no panic"), (Err(Status::Io), Err(Status::Io), Err(Status::Io)));
    });
    device.release_in_reverse();
}

/// A server that says what the test wants, once.
pub(crate) fn scripted(path: &Path, script: impl FnOnce(&mut UnixStream) + Send + 'static) {
    let listener = UnixListener::bind(path).expect("bound");
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a client");
        script(&mut stream);
    });
}

/// Takes an option off the stream.
pub(crate) fn option(stream: &mut impl Read) -> u32 {
    let mut header = [0; 16];
    stream.read_exact(&mut header).expect("an option");
    let length = u32::from_be_bytes([header[12], header[13], header[14], header[15]]);
    stream.read_exact(&mut vec![0; length as usize]).expect("its data");
    u32::from_be_bytes([header[8], header[9], header[10], header[11]])
}

#[test]
fn servers_that_misbehave_are_told_apart() {
    let dir = tempfile::tempdir().expect("a directory");
    let domain = Domain::default();
    let at = |name: &str| dir.path().join(name);
    let uri = |name: &str| format!("nbd+unix:///x?socket={}", dir.path().join(name).display());
    let check = |name: &str, expect: &str| {
        let error = connect(&domain, &uri(name)).err().expect("refused");
        assert!(error.contains(expect) && error.contains(name), "{error}");
    };
    check("nobody", "cannot connect");
    scripted(&at("http"), |s| s.write_all(b"HTTP/1.1 400 Bad Request\r\n").expect("sent"));
    check("http", "not an NBD server");
    scripted(&at("short"), |s| s.write_all(b"NBDMAGIC").expect("sent"));
    check("short", "hung up");
    let negotiate = |kind: u32, text: &'static [u8]| {
        move |s: &mut UnixStream| {
            s.write_all(&greeting(handshake::FIXED_NEWSTYLE)).expect("sent");
            s.read_exact(&mut [0; 4]).expect("flags");
            loop {
                let option = option(s);
                let mut out = Vec::new();
                match option {
                    opt::GO => put_reply(&mut out, option, kind, text),
                    _ => put_reply(&mut out, option, rep::ERR_UNSUP, b""),
                }
                s.write_all(&out).expect("sent");
                if option == opt::GO {
                    return;
                }
            }
        }
    };
    scripted(&at("unknown"), negotiate(rep::ERR_UNKNOWN, b""));
    check("unknown", "does not know the export \"x\"");
    scripted(&at("tls"), negotiate(rep::ERR_TLS_REQD, b""));
    check("tls", "TLS");
    scripted(&at("policy"), negotiate(rep::ERR_POLICY, b"closed on\x1b[2J Sundays"));
    check("policy", "closed on[2J Sundays");
    scripted(&at("nothing"), negotiate(rep::ACK, b""));
    check("nothing", "without a size");
}

/// A server without fixed newstyle, structured replies or flush; then one that answers out of line.
#[test]
fn an_old_server_serves_and_a_liar_is_left() {
    let dir = tempfile::tempdir().expect("a directory");
    let domain = Domain::default();
    for (name, liar) in [("old", false), ("liar", true)] {
        let path = dir.path().join(name);
        scripted(&path, move |s| {
            s.write_all(&greeting(0)).expect("sent");
            s.read_exact(&mut [0; 4]).expect("flags");
            assert_eq!(option(s), opt::EXPORT_NAME);
            let mut reply = (1u64 << 20).to_be_bytes().to_vec();
            reply.extend_from_slice(&transmission::HAS_FLAGS.to_be_bytes());
            reply.extend_from_slice(&[0; 124]);
            s.write_all(&reply).expect("sent");
            let mut header = [0; 28];
            s.read_exact(&mut header).expect("a request");
            if liar {
                header[15] ^= 1;
            }
            let mut reply = udm_nbd::wire::reply::simple(None, 0).to_vec();
            reply[8..16].copy_from_slice(&header[8..16]);
            reply.extend_from_slice(&[0x77; 512]);
            s.write_all(&reply).expect("sent");
            // Until the client hangs up.
            let _ = s.read(&mut [0; 28]);
        });
        let device = connect(&domain, &format!("nbd+unix:///x?socket={}", path.display())).expect("connected");
        let limits = device.limits();
        assert!(!limits.write_cache && limits.max_discard.is_zero() && limits.max_write_zeroes.is_zero());
        let io = BlockingIo::new(&domain, device).expect("a channel");
        let mut data = [0; 512];
        let read = io.read(Sector::ZERO, &mut data);
        if liar {
            assert_eq!(read, Err(Status::Io));
        } else {
            assert_eq!((read, data), (Ok(()), [0x77; 512]));
            io.flush().expect("nothing to flush");
        }
    }
}

/// nbdkit for one test.
struct Nbdkit {
    child: Child,
    dir: tempfile::TempDir,
}

impl Nbdkit {
    /// `None`, and a line that says so, when it is not installed.
    fn start(args: &[&str]) -> Option<Self> {
        let dir = tempfile::tempdir().expect("a directory");
        let mut command = Command::new("nbdkit");
        let socket = dir.path().join("s");
        command.args(["--foreground", "--exit-with-parent", "--unix"]).arg(&socket).args(args);
        let Ok(child) = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn() else {
            println!("SKIP nbdkit is not installed");
            return None;
        };
        let this = Self { child, dir };
        // The file is there a moment before anybody listens.
        until("nbdkit listens", || UnixStream::connect(&socket).is_ok());
        Some(this)
    }

    fn uri(&self) -> String {
        format!("nbd+unix:///?socket={}", self.dir.path().join("s").display())
    }
}

impl Drop for Nbdkit {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn against_nbdkit() {
    let domain = Domain::default();
    for args in [&["memory", "64M"][..], &["--no-sr", "memory", "64M"], &["--mask-handshake=0", "memory", "64M"]] {
        let Some(nbdkit) = Nbdkit::start(args) else { return };
        let device = connect(&domain, &nbdkit.uri()).expect("connected");
        assert_eq!(device.sectors(), Sectors::in_bytes(64 << 20));
        exercise(&domain, device);
    }
}

#[test]
fn against_nbdkit_with_holes_and_errors() {
    let domain = Domain::default();
    let Some(nbdkit) = Nbdkit::start(&["memory", "1M"]) else { return };
    let device = connect(&domain, &nbdkit.uri()).expect("connected");
    let io = BlockingIo::new(&domain, device).expect("a channel");
    let kinds: Vec<_> = io.extents(Sector::ZERO, Sectors::new(2048)).iter().map(|e| e.kind).collect();
    assert_eq!(kinds, [ExtentKind::Hole]);

    let Some(nbdkit) = Nbdkit::start(&["--filter=error", "memory", "1M", "error=ENOSPC", "error-pwrite-rate=100%"])
    else {
        return;
    };
    let device = connect(&domain, &nbdkit.uri()).expect("connected");
    let io = BlockingIo::new(&domain, device).expect("a channel");
    assert_eq!(io.write(Sector::ZERO, &[1; 4096], OpFlags::NONE), Err(Status::NoSpace));
    io.read(Sector::ZERO, &mut [0; 4096]).expect("reads go on");
}

/// The raw client and udm's do not disturb one another.
#[test]
fn two_kinds_of_clients_see_the_same_bytes() {
    let served = Served::memory();
    let device = connect(&served.domain, &served.uri("mem")).expect("connected");
    let io = BlockingIo::new(&served.domain, device).expect("a channel");
    let mut raw = Raw::go(&served.socket(), "mem", true);
    for i in 0..50u64 {
        io.write(Sector::new(i * 8), &pattern(i as u8, 4096), OpFlags::NONE).expect("written");
        assert_eq!(raw.read(i * 4096, 4096), pattern(i as u8, 4096));
        raw.write(i * 4096, &pattern(!i as u8, 4096));
        let mut data = [0; 4096];
        io.read(Sector::new(i * 8), &mut data).expect("read");
        assert_eq!(data[..], pattern(!i as u8, 4096));
    }
}

/// A clock that only the test moves.
#[derive(Default)]
struct Still(AtomicU64);

impl Clock for Still {
    fn now(&self) -> Nanos {
        Nanos(self.0.load(Ordering::SeqCst))
    }
}

#[test]
fn a_server_has_one_deadline_for_all_it_says() {
    let dir = tempfile::tempdir().expect("a directory");
    let clock = Arc::new(Still::default());
    let domain = DomainBuilder::default().clock(clock.clone()).build();
    let uri = |name: &str| format!("nbd+unix:///x?socket={}", dir.path().join(name).display());
    // Each byte comes in good time, all together do not.
    let slowly = clock.clone();
    scripted(&dir.path().join("drips"), move |s| {
        for byte in greeting(handshake::FIXED_NEWSTYLE).into_iter().cycle() {
            slowly.0.fetch_add(3_000_000_000, Ordering::SeqCst);
            if s.write_all(&[byte]).is_err() {
                return;
            }
        }
    });
    let error = connect(&domain, &uri("drips")).err().expect("refused");
    assert!(error.contains("did not answer within 20 s"), "{error}");
    // One that says nothing is waited for as long as somebody wants it.
    scripted(&dir.path().join("silent"), |s| drop(s.read(&mut [0])));
    let (uri, asked) = (uri("silent").parse().expect("a URI"), AtomicU64::new(0));
    let gone = || asked.fetch_add(1, Ordering::Relaxed) > 2;
    let error = NbdDevice::connect(&uri, &domain, PATIENCE, &gone).err().expect("given up").to_string();
    assert!(error.contains("given up"), "{error}");
}

#[test]
fn what_a_server_has_not_answered_can_be_asked() {
    let dir = tempfile::tempdir().expect("a directory");
    let clock = Arc::new(Still::default());
    let domain = DomainBuilder::default().clock(clock.clone()).build();
    let (answer, may_answer) = std::sync::mpsc::channel::<()>();
    let (asked, was_asked) = std::sync::mpsc::channel();
    scripted(&dir.path().join("slow"), move |s| {
        s.write_all(&greeting(0)).expect("sent");
        s.read_exact(&mut [0; 4]).expect("flags");
        option(s);
        s.write_all(&[&(1u64 << 20).to_be_bytes()[..], &1u16.to_be_bytes(), &[0; 124]].concat()).expect("sent");
        let mut request = [0; 28];
        s.read_exact(&mut request).expect("a request");
        asked.send(()).expect("heard");
        may_answer.recv().expect("told");
        let reply = [&0x6744_6698u32.to_be_bytes()[..], &[0; 4], &request[8..16], &[7; 512]].concat();
        s.write_all(&reply).expect("sent");
        let _ = s.read(&mut [0]);
    });
    let uri = format!("nbd+unix:///x?socket={}", dir.path().join("slow").display());
    let device = connect(&domain, &uri).expect("connected");
    assert_eq!(device.outstanding().map(|out| (out.requests, out.lost)), Some((0, false)));
    std::thread::scope(|s| {
        let read = s.spawn(|| {
            let io = BlockingIo::new(&domain, device.clone()).expect("a channel");
            io.read(Sector::ZERO, &mut [0; 512])
        });
        was_asked.recv().expect("asked");
        clock.0.fetch_add(12_000_000_000, Ordering::SeqCst);
        let out = device.outstanding().expect("told");
        assert_eq!((out.requests, out.silent_ns / 1_000_000_000, out.oldest_ns / 1_000_000_000), (1, 12, 12));
        answer.send(()).expect("the server waits");
        read.join().expect("no panic").expect("read");
    });
    assert_eq!(device.outstanding().map(|out| (out.requests, out.silent_ns)), Some((0, 0)));
}
