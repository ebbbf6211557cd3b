//! Reply streams, taken apart.

use super::*;
use crate::wire::reply::{StatusExtent, none_chunk, only_data_chunk, put_block_status, put_error_chunk, simple};
use rustix::fd::AsFd;
use std::io::Write;
use std::os::unix::net::UnixStream;
use udm_io::Segment;

/// Sends `bytes` in pieces of `step` to a receiver for which cookie 7 is a read of `memory` at byte 4096. The events,
/// and whether the stream was found wrong.
fn events(bytes: &[u8], step: usize, structured: bool, memory: &mut [u8]) -> (Vec<Event>, Option<String>) {
    let (mut server, client) = UnixStream::pair().expect("a pair");
    let length = memory.len();
    let (first, second) = memory.split_at_mut(length / 3);
    // SAFETY: the slices are borrowed for the whole function, and nobody else looks at them.
    let list =
        unsafe { [Segment::new(first.as_mut_ptr(), first.len()), Segment::new(second.as_mut_ptr(), second.len())] };
    let target = |cookie: u64| {
        // SAFETY: the list holds `length` bytes.
        (cookie == 7).then(|| (unsafe { Segments::new(list.as_ptr(), 0, length) }, 4096, length as u64))
    };
    let (mut receiver, mut found) = (Receiver::new(), Vec::new());
    for piece in bytes.chunks(step) {
        server.write_all(piece).expect("sent");
        assert!(receiver.fill(client.as_fd(), target).expect("received"));
        loop {
            match receiver.next(structured, target) {
                Ok(Some(event)) => found.push(event),
                Ok(None) => break,
                Err(lost) => return (found, Some(lost.to_string())),
            }
        }
    }
    (found, None)
}

/// The same whatever the pieces are; returns the memory of the read.
#[track_caller]
fn check(bytes: &[u8], structured: bool, expect: &[Event]) -> Vec<u8> {
    let mut memory = vec![0xaa; 3000];
    for step in [bytes.len(), 1, 11, 700] {
        memory.fill(0xaa);
        let (found, lost) = events(bytes, step, structured, &mut memory);
        assert_eq!((found.as_slice(), lost), (expect, None), "in pieces of {step}");
    }
    memory
}

#[track_caller]
fn refused(bytes: &[u8], structured: bool, expect: &str) {
    let (_, lost) = events(bytes, bytes.len(), structured, &mut vec![0; 3000]);
    assert!(lost.as_ref().is_some_and(|lost| lost.contains(expect)), "{lost:?}");
}

fn data(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + 1) as u8).collect()
}

fn done(cookie: u64) -> Event {
    Event::Done { cookie }
}

#[test]
fn simple_replies() {
    let mut bytes = simple(None, 1).to_vec();
    bytes.extend_from_slice(&simple(None, 7));
    bytes.extend_from_slice(&data(3000));
    bytes.extend_from_slice(&simple(Some(NbdError::NoSpc), 7));
    bytes.extend_from_slice(&simple(None, 2));
    let error = Event::Error { cookie: 7, error: NbdError::NoSpc };
    let expect = [done(1), Event::Data { cookie: 7, at: 0, bytes: 3000 }, done(7), error, done(7), done(2)];
    assert_eq!(check(&bytes, false, &expect), data(3000));
}

#[test]
fn chunks_in_any_order_fill_their_places() {
    let chunk = |flags, kind, payload: &[&[u8]]| {
        let payload = payload.concat();
        let header = ChunkHeader { flags, kind, cookie: 7, length: payload.len() as u32 };
        [&header.encode()[..], &payload].concat()
    };
    let at = |offset: u64| (4096 + offset).to_be_bytes();
    let bytes = [
        chunk(0, chunk::OFFSET_DATA, &[&at(2000), &data(3000)[2000..]]),
        chunk(0, chunk::OFFSET_HOLE, &[&at(500), &1500u32.to_be_bytes()]),
        chunk(0, chunk::OFFSET_DATA, &[&at(0), &data(500)]),
        none_chunk(7).to_vec(),
    ]
    .concat();
    let got = |at, bytes| Event::Data { cookie: 7, at, bytes };
    let memory = check(&bytes, true, &[got(2000, 1000), got(500, 1500), got(0, 500), done(7)]);
    assert_eq!(memory[..500], data(500));
    assert_eq!(memory[500..2000], [0; 1500]);
    assert_eq!(memory[2000..], data(3000)[2000..]);
    let whole = [&only_data_chunk(7, 4096, 3000)[..], &data(3000)].concat();
    assert_eq!(check(&whole, true, &[got(0, 3000), done(7)]), data(3000));
}

#[test]
fn errors_and_extents() {
    let mut bytes = Vec::new();
    put_error_chunk(&mut bytes, 7, NbdError::Io, "broken");
    put_block_status(
        &mut bytes,
        3,
        1,
        &[
            StatusExtent { length: 4096, flags: 3 },
            StatusExtent { length: 512, flags: 2 },
            StatusExtent { length: 1024, flags: 1 },
            StatusExtent { length: 100, flags: 0 },
        ],
    );
    let extent = |sectors, kind| Extent { sectors: Sectors::new(sectors), kind };
    let extents = vec![extent(8, ExtentKind::Hole), extent(1, ExtentKind::Zero), extent(3, ExtentKind::Data)];
    let expect = [
        Event::Error { cookie: 7, error: NbdError::Io },
        done(7),
        Event::Status { cookie: 3, context: 1, extents },
        done(3),
    ];
    check(&bytes, true, &expect);
}

#[test]
fn streams_that_lie() {
    refused(&[1; 16], true, "magic");
    refused(&simple(None, 7), true, "simple reply to a read");
    refused(&none_chunk(7), false, "not agreed on");
    refused(&only_data_chunk(7, 0, 512), true, "outside of its read");
    refused(&only_data_chunk(7, 4096, 3001), true, "outside of its read");
    refused(&only_data_chunk(7, u64::MAX, 512), true, "outside of its read");
    refused(&only_data_chunk(8, 4096, 512), true, "data for no read");
    refused(&only_data_chunk(7, 4096, 0), true, "without data");
    let long = ChunkHeader { flags: 1, kind: chunk::ERROR, cookie: 7, length: u32::MAX };
    refused(&long.encode(), true, "too long");
    let odd = ChunkHeader { flags: 1, kind: 3, cookie: 7, length: 0 };
    refused(&odd.encode(), true, "unknown type");
    let hole = ChunkHeader { flags: 1, kind: chunk::OFFSET_HOLE, cookie: 7, length: 12 };
    refused(&[&hole.encode()[..], &4096u64.to_be_bytes(), &0u32.to_be_bytes()].concat(), true, "outside of its read");
}
