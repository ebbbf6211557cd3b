//! The server allocates nothing for a request in the steady state. Counted for the whole process: the client here
//! allocates nothing either.

use std::alloc::{GlobalAlloc, Layout, System};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use udm_base::Sectors;
use udm_export::nbd::Server;
use udm_export::{Listen, NamedDevice};
use udm_io::{Domain, MemoryDevice};
use udm_nbd::wire::Command;
use udm_nbd::wire::consts::opt;
use udm_nbd::wire::option::{InfoRequest, put_option};
use udm_nbd::wire::request::Request;

struct Counting;

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

// SAFETY: hands everything to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const DEPTH: usize = 32;

#[test]
fn a_request_allocates_nothing() {
    let dir = tempfile::tempdir().expect("a directory");
    let socket = dir.path().join("s");
    let device = Arc::new(MemoryDevice::new(Sectors::new(1 << 16)).expect("memory"));
    let builder = Server::builder().threads(1).listen(Listen::Unix(socket.clone()));
    let _server =
        builder.start(&Domain::default(), Arc::new(vec![NamedDevice("one".into(), device)])).expect("a server");

    let mut stream = UnixStream::connect(&socket).expect("it listens");
    let mut hello = 3u32.to_be_bytes().to_vec();
    let mut go = Vec::new();
    InfoRequest { name: "", wants_name: false, wants_description: false, wants_block_size: false }.put(&mut go);
    put_option(&mut hello, opt::GO, &go);
    stream.write_all(&hello).expect("sent");
    // Greeting, INFO_EXPORT and ACK.
    stream.read_exact(&mut [0; 18 + 20 + 12 + 20]).expect("answered");

    for (command, length) in
        [(Command::Read, 4096), (Command::Write, 4096), (Command::Read, 65536), (Command::Flush, 0)]
    {
        let mut requests = Vec::new();
        for i in 0..DEPTH as u64 {
            let offset = if length == 0 { 0 } else { i * 65536 };
            let request = Request { flags: 0, kind: command as u16, cookie: i, offset, length };
            requests.extend_from_slice(&request.encode());
            if command == Command::Write {
                requests.resize(requests.len() + length as usize, 7);
            }
        }
        let data = if command == Command::Read { length as usize } else { 0 };
        let mut replies = vec![0; DEPTH * (16 + data)];
        // In a thread of its own, so that neither side waits for the other to take what it sends.
        let mut sender = stream.try_clone().expect("a clone");
        std::thread::scope(|scope| {
            let (go, going) = std::sync::mpsc::sync_channel::<()>(1);
            let requests = &requests;
            scope.spawn(move || while going.recv().is_ok() && sender.write_all(requests).is_ok() {});
            // Lists still grow to the longest that they are ever needed, which depends on what meets what: what
            // allocates for each request never has a window without.
            let windows: Vec<usize> = (0..20)
                .map(|_| {
                    let before = ALLOCATIONS.load(Ordering::Relaxed);
                    for _ in 0..100 {
                        go.send(()).expect("the sender lives");
                        stream.read_exact(&mut replies).expect("answered");
                    }
                    ALLOCATIONS.load(Ordering::Relaxed) - before
                })
                .collect();
            let calm = windows.iter().filter(|allocations| **allocations == 0).count();
            assert!(
                calm >= 10,
                "allocations in {} requests each ({command:?}, {length} bytes): {windows:?}",
                100 * DEPTH
            );
        });
    }
}
