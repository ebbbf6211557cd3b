//! A thousand clients that do nothing.

use crate::udm::{Udm, wait_until};
use rustix::process::{Pid, Resource, getrlimit, setrlimit};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

const CLIENTS: usize = 1000;
/// What a client may cost the daemon, in KiB: one buffer for requests and one for replies would be much more.
const KIB_A_CLIENT: u64 = 8;

/// Resident memory of a process in KiB.
fn resident(pid: Pid) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("the daemon lives");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("VmRSS");
    line.trim().trim_end_matches("kB").trim().parse().expect("a number of kB")
}

/// A client in the transmission phase: fixed newstyle, NBD_OPT_EXPORT_NAME.
fn connect(udm: &Udm, export: &str) -> UnixStream {
    let mut stream = UnixStream::connect(udm.nbd_socket()).expect("the daemon listens");
    let mut greeting = [0; 18];
    stream.read_exact(&mut greeting).expect("a greeting");
    assert_eq!(&greeting[..16], b"NBDMAGICIHAVEOPT");
    // NBD_FLAG_C_FIXED_NEWSTYLE and NBD_FLAG_C_NO_ZEROES.
    let mut hello = 3u32.to_be_bytes().to_vec();
    hello.extend(b"IHAVEOPT");
    hello.extend(1u32.to_be_bytes());
    hello.extend((export.len() as u32).to_be_bytes());
    hello.extend(export.as_bytes());
    stream.write_all(&hello).expect("the daemon reads");
    let mut answer = [0; 10];
    stream.read_exact(&mut answer).expect("the export's size and flags");
    stream
}

/// Reads a block: the connection is not only open but served.
fn read(stream: &mut UnixStream) {
    let mut request = 0x2560_9513u32.to_be_bytes().to_vec();
    request.extend([0; 4]);
    request.extend(7u64.to_be_bytes());
    request.extend(0u64.to_be_bytes());
    request.extend(4096u32.to_be_bytes());
    stream.write_all(&request).expect("the daemon reads");
    let mut reply = [0; 16 + 4096];
    stream.read_exact(&mut reply).expect("a reply");
    assert_eq!(reply[..8], [0x67, 0x44, 0x66, 0x98, 0, 0, 0, 0]);
}

#[test]
fn a_thousand_idle_clients_cost_little_and_hinder_nobody() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    if limit.maximum.is_some_and(|most| most < CLIENTS as u64 + 64) || setrlimit(Resource::Nofile, limit).is_err() {
        println!("SKIP {CLIENTS} clients: no more than {:?} descriptors may be open", limit.maximum);
        return;
    }
    let udm = Udm::new();
    udm.create("dev", "0 32768 ram");
    let mut first = connect(&udm, "dev");
    read(&mut first);
    let before = resident(udm.daemon());
    let mut idle: Vec<_> = (0..CLIENTS).map(|_| connect(&udm, "dev")).collect();
    assert_eq!(udm.number("dev", "open"), CLIENTS as u64 + 1);
    let grown = resident(udm.daemon()).saturating_sub(before);
    println!("{CLIENTS} idle clients: {grown} KiB more resident memory");
    assert!(grown < CLIENTS as u64 * KIB_A_CLIENT, "{grown} KiB for {CLIENTS} clients");
    // The first, one of them, and a new one are served.
    read(&mut first);
    read(&mut idle[CLIENTS / 2]);
    read(&mut connect(&udm, "dev"));
    // Each has worked once: what it needed for that is given back, or small.
    idle.iter_mut().for_each(read);
    let grown = resident(udm.daemon()).saturating_sub(before);
    println!("{CLIENTS} clients that have read once: {grown} KiB more resident memory");
    assert!(grown < CLIENTS as u64 * KIB_A_CLIENT * 4, "{grown} KiB for {CLIENTS} clients");
    // All hang up at once.
    drop(idle);
    drop(first);
    wait_until("all are noticed to have gone", || udm.number("dev", "open") == 0);
    udm.ok(&["remove", "dev"]);
}
