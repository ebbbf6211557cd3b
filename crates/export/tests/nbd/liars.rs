//! udm's own client against servers that agree well, and then do not say what they should.

use crate::client::{PATIENCE, connect, option, scripted};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, mpsc};
use udm_base::{Sector, Sectors};
use udm_io::{BlockingIo, Domain, Extent, ExtentKind, Questions, Status};
use udm_nbd::NbdDevice;
use udm_nbd::wire::Command;
use udm_nbd::wire::consts::{base_allocation, handshake, info, opt, rep, transmission};
use udm_nbd::wire::option::{greeting, put_reply};
use udm_nbd::wire::reply::{StatusExtent, data_chunk, none_chunk, only_data_chunk, put_block_status, simple};
use udm_nbd::wire::request::{REQUEST_LEN, Request};

/// The id of the one metadata context.
const CONTEXT: u32 = 5;

/// Agrees on structured replies, on the one context, and on an export of 1 MiB.
fn agree(s: &mut UnixStream) {
    s.write_all(&greeting(handshake::FIXED_NEWSTYLE)).expect("sent");
    s.read_exact(&mut [0; 4]).expect("flags");
    loop {
        let (option, mut out) = (option(s), Vec::new());
        match option {
            opt::SET_META_CONTEXT => {
                let data = [&CONTEXT.to_be_bytes()[..], base_allocation::NAME.as_bytes()].concat();
                put_reply(&mut out, option, rep::META_CONTEXT, &data);
            }
            opt::GO => {
                let flags = transmission::HAS_FLAGS | transmission::SEND_FLUSH;
                let data = [&info::EXPORT.to_be_bytes()[..], &(1u64 << 20).to_be_bytes(), &flags.to_be_bytes()];
                put_reply(&mut out, option, rep::INFO, &data.concat());
            }
            _ => {}
        }
        put_reply(&mut out, option, rep::ACK, b"");
        s.write_all(&out).expect("sent");
        if option == opt::GO {
            return;
        }
    }
}

/// The next request without its payload; `None` once the client has gone.
fn request(s: &mut UnixStream) -> Option<Request> {
    let mut header = [0; REQUEST_LEN];
    s.read_exact(&mut header).ok()?;
    Some(Request::decode(&header).expect("a request"))
}

/// A device on a server that agrees and then does as it is told to.
fn device(domain: &Domain, script: impl FnOnce(&mut UnixStream) + Send + 'static) -> Arc<NbdDevice> {
    let dir = tempfile::tempdir().expect("a directory");
    scripted(&dir.path().join("s"), move |s| {
        agree(s);
        script(s);
        // Until the client hangs up.
        while s.read(&mut [0; 512]).is_ok_and(|n| n > 0) {}
    });
    connect(domain, &format!("nbd+unix:///x?socket={}", dir.path().join("s").display())).expect("connected")
}

#[test]
fn a_read_of_which_a_part_comes_twice_and_another_never_fails() {
    // Of 1024 bytes, where each piece begins, in units of 256.
    for (pieces, expect) in [
        (&[0u64, 1, 2, 3][..], Ok(())),
        (&[3, 1, 0, 2], Ok(())),
        (&[2, 3, 0, 1], Ok(())),
        (&[0, 1, 2, 0], Err(Status::Io)),
        (&[3, 1, 0, 1], Err(Status::Io)),
        (&[0, 1, 2], Err(Status::Io)),
    ] {
        let domain = Domain::default();
        let device = device(&domain, move |s| {
            let request = request(s).expect("a request");
            for piece in pieces {
                s.write_all(&data_chunk(request.cookie, request.offset + piece * 256, 256, false)).expect("sent");
                s.write_all(&[*piece as u8; 256]).expect("sent");
            }
            s.write_all(&none_chunk(request.cookie)).expect("sent");
        });
        let io = BlockingIo::new(&domain, device).expect("a channel");
        let mut data = [0xee; 1024];
        assert_eq!(io.read(Sector::new(8), &mut data), expect, "pieces {pieces:?}");
        assert!(expect.is_err() || data.iter().enumerate().all(|(i, b)| *b == (i / 256) as u8), "pieces {pieces:?}");
    }
}

#[test]
fn extents_that_do_not_end_with_sectors_hide_no_data() {
    let (data, zero, hole) =
        (0, base_allocation::STATE_ZERO, base_allocation::STATE_HOLE | base_allocation::STATE_ZERO);
    for (told, expect) in [
        // 100 bytes of data in the second sector.
        (vec![(700, hole), (100, data), (3296, hole)], vec![(1, hole), (1, data), (6, hole)]),
        (vec![(100, data), (924, zero), (3072, hole)], vec![(1, data), (1, zero), (6, hole)]),
        (vec![(1000, hole), (1000, data), (2096, zero)], vec![(1, hole), (3, data), (4, zero)]),
        (vec![(4000, hole)], vec![(7, hole)]),
        (vec![(100, hole)], vec![(8, data)]),
    ] {
        let said = format!("{told:?}");
        let domain = Domain::default();
        let device = device(&domain, move |s| {
            let request = request(s).expect("a question");
            let extents: Vec<_> = told.iter().map(|&(length, flags)| StatusExtent { length, flags }).collect();
            let mut out = Vec::new();
            put_block_status(&mut out, request.cookie, CONTEXT, &extents);
            s.write_all(&out).expect("sent");
        });
        let kind = |flags| match flags {
            0b11 => ExtentKind::Hole,
            0b10 => ExtentKind::Zero,
            _ => ExtentKind::Data,
        };
        let expect: Vec<_> =
            expect.iter().map(|&(n, flags)| Extent { sectors: Sectors::new(n), kind: kind(flags) }).collect();
        let io = BlockingIo::new(&domain, device).expect("a channel");
        assert_eq!(io.extents(Sector::ZERO, Sectors::new(8)), expect, "told {said}");
    }
}

#[test]
fn an_answer_that_comes_twice_answers_no_other_request() {
    let domain = Domain::default();
    let device = device(&domain, |s| {
        let first = request(s).expect("a flush");
        s.write_all(&simple(None, first.cookie)).expect("sent");
        // The second is done, says the answer to the first.
        request(s).expect("another flush");
        s.write_all(&simple(None, first.cookie)).expect("sent");
    });
    let io = BlockingIo::new(&domain, device).expect("a channel");
    assert_eq!((io.flush(), io.flush()), (Ok(()), Err(Status::Io)));
}

#[test]
fn a_device_ends_though_its_server_owes_it_the_answer_to_a_question() {
    let domain = Domain::default();
    let (asked, was_asked) = mpsc::channel();
    let device = device(&domain, move |s| {
        request(s).expect("a question");
        asked.send(()).expect("heard");
    });
    let channel = domain.channel().expect("a channel");
    let mut questions = Questions::new(&channel);
    questions.ask(&channel, &*device, Sector::ZERO, Sectors::new(8));
    was_asked.recv().expect("asked");
    let (ended, has_ended) = mpsc::channel();
    std::thread::spawn(move || {
        drop(device);
        ended.send(())
    });
    has_ended.recv_timeout(PATIENCE).expect("it waits for the server");
    let data = Extent { sectors: Sectors::new(8), kind: ExtentKind::Data };
    assert_eq!(questions.next_answer().map(|(_, extents)| extents), Some(vec![data]));
}

#[test]
fn reads_do_not_wait_for_questions_that_a_server_leaves_unanswered() {
    const MANY: usize = 1024;
    let domain = Domain::default();
    let device = device(&domain, |s| {
        while let Some(request) = request(s) {
            if request.kind == Command::Read as u16 {
                s.write_all(&only_data_chunk(request.cookie, request.offset, 512)).expect("sent");
                s.write_all(&[7; 512]).expect("sent");
            }
        }
    });
    let channel = domain.channel().expect("a channel");
    let mut questions = Questions::new(&channel);
    (0..MANY).for_each(|_| _ = questions.ask(&channel, &*device, Sector::ZERO, Sectors::new(8)));
    let (read, has_read) = mpsc::channel();
    let there = device.clone();
    std::thread::spawn(move || {
        let mut data = [0; 512];
        let status = BlockingIo::new(&domain, there).expect("a channel").read(Sector::ZERO, &mut data);
        read.send((status, data[0]))
    });
    assert_eq!(has_read.recv_timeout(PATIENCE), Ok((Ok(()), 7)), "the read waits");
    // Nor does the end.
    drop(device);
    assert!((0..MANY).all(|_| questions.next_answer().is_some()), "each question has an answer");
}
