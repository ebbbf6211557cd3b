//! An entry for fuzzers: a server that says any bytes.

use super::handshake::negotiate;
use super::lost::Lost;
use super::receive::Receiver;
use rustix::fd::AsFd;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use udm_io::{Segment, Segments};

/// Bytes of the one read that the server may answer, by cookies 0 to 3.
const LENGTH: usize = 8192;

/// Reads from the server, and forgets what it is told.
struct Deaf<'a>(&'a [u8]);

impl Read for Deaf<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.0.read(into)
    }
}

impl Write for Deaf<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A handshake, then replies. No data lands outside of the memory of a read.
///
/// # Panics
/// When a promise is broken, or the system has no descriptors left.
pub fn server_says(bytes: &[u8]) {
    let mut server = Deaf(bytes);
    let Ok(agreed) = negotiate(&mut server, "x") else { return };
    let _ = super::limits(&agreed);
    // The end of a stream is an error of its own: the receiver never waits.
    let _ = replies(agreed.structured, server.0);
}

fn replies(structured: bool, mut bytes: &[u8]) -> Result<(), Lost> {
    let mut memory = vec![0xa5u8; LENGTH + 2048];
    let base = memory.as_mut_ptr();
    // Two pieces with a gap between, in which nothing may be written.
    // SAFETY: both lie within `memory`, which is looked at again only at the end.
    let pieces =
        unsafe { [Segment::new(base.add(512), 4096), Segment::new(base.add(512 + 4096 + 512), LENGTH - 4096)] };
    let target = |cookie: u64| {
        // SAFETY: the list holds LENGTH bytes and outlives the closure.
        (cookie < 4).then(|| (unsafe { Segments::new(pieces.as_ptr(), 0, LENGTH) }, 0, LENGTH as u64))
    };
    let (mut near, far) = UnixStream::pair().expect("two descriptors");
    near.set_nonblocking(true).expect("a socket can be set so");
    let mut receiver = Receiver::new();
    let outcome = loop {
        while !bytes.is_empty() {
            match near.write(bytes) {
                Ok(sent) => bytes = &bytes[sent..],
                Err(_) => break,
            }
        }
        if bytes.is_empty() {
            let _ = near.shutdown(std::net::Shutdown::Write);
        }
        if let Err(lost) = receiver.fill(far.as_fd(), target) {
            break Err(lost);
        }
        let lost = loop {
            match receiver.next(structured, target) {
                Ok(Some(_)) => {}
                Ok(None) => break None,
                Err(lost) => break Some(lost),
            }
        };
        if let Some(lost) = lost {
            break Err(lost);
        }
    };
    let untouched = |range: std::ops::Range<usize>| memory[range].iter().all(|b| *b == 0xa5);
    assert!(untouched(0..512) && untouched(4608..5120) && untouched(LENGTH + 1024..memory.len()), "data out of place");
    outcome
}
