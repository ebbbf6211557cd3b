//! Bytes in, bytes out.

use super::*;
use crate::exports::{Export, NamedDevice};
use proptest::prelude::*;
use std::sync::Arc;
use udm_base::Sectors;
use udm_io::{BlockDevice, MemoryDevice};
use udm_nbd::wire::consts::transmission as t;
use udm_nbd::wire::option::{BlockSizes, put_option};

/// Two exports: `disk` (1 MiB, the default one) and `locked`, which is refused.
struct Two;

struct Disk;

impl Exports for Two {
    fn list(&self) -> Vec<Arc<dyn Export>> {
        vec![Arc::new(Disk), Arc::new(NamedDevice("locked".into(), Disk.device()))]
    }

    fn find(&self, name: &str, client: &Client) -> Result<Arc<dyn Export>, OpenError> {
        assert_eq!(*client, Client::Internal);
        match name {
            "" | "disk" => Ok(Arc::new(Disk)),
            "locked" => Err(OpenError::Refused("not now".into())),
            _ => Err(OpenError::Unknown(name.into())),
        }
    }
}

impl Export for Disk {
    fn name(&self) -> String {
        "disk".into()
    }
    fn description(&self) -> String {
        "a disk".into()
    }
    fn device(&self) -> Arc<dyn BlockDevice> {
        Arc::new(MemoryDevice::new(Sectors::new(2048)).expect("a mebibyte"))
    }
}

/// How a handshake ended.
#[derive(Debug, PartialEq, Eq)]
enum End {
    More,
    Close,
    HungUp,
    /// The session, and what was left of the input.
    Started(Session, usize),
}

/// Feeds `input` in pieces of `step` bytes; the output is without the greeting.
fn feed(input: &[u8], step: usize, shutdown: bool) -> (Vec<u8>, End) {
    let (mut negotiation, greeting) = Negotiation::new(Client::Internal);
    assert_eq!(&greeting, b"NBDMAGICIHAVEOPT\0\x03");
    if shutdown {
        negotiation.shut_down();
    }
    let (mut out, mut pending, mut left) = (Vec::new(), Vec::new(), input.len());
    for piece in input.chunks(step) {
        pending.extend_from_slice(piece);
        loop {
            let (used, step) = match negotiation.step(&pending, &mut out, &Two) {
                Ok(step) => step,
                Err(_) => return (out, End::HungUp),
            };
            pending.drain(..used);
            left -= used;
            match step {
                Step::Again => {}
                Step::More => break,
                Step::Close => return (out, End::Close),
                Step::Start(started) => return (out, End::Started(started.session, left)),
            }
        }
    }
    (out, End::More)
}

/// A client's side: its flags, then options.
#[derive(Clone)]
struct Said(Vec<u8>);

impl Said {
    fn flags(flags: u32) -> Self {
        Self(flags.to_be_bytes().to_vec())
    }
    fn option(mut self, option: u32, data: &[u8]) -> Self {
        put_option(&mut self.0, option, data);
        self
    }
    fn meta(self, option: u32, name: &str, queries: &[&str]) -> Self {
        let mut data = Vec::new();
        MetaRequest::put(&mut data, name, queries);
        self.option(option, &data)
    }
    fn info(self, option: u32, name: &str) -> Self {
        let mut data = Vec::new();
        InfoRequest { name, wants_name: true, wants_description: true, wants_block_size: true }.put(&mut data);
        self.option(option, &data)
    }
}

/// The server's side: replies as (option, type, data).
fn replies(mut bytes: &[u8]) -> Vec<(u32, u32, Vec<u8>)> {
    use udm_nbd::wire::option::{OPTION_REPLY_LEN, OptionReplyHeader};
    let mut found = Vec::new();
    while let Some((header, rest)) = bytes.split_first_chunk::<OPTION_REPLY_LEN>() {
        let header = OptionReplyHeader::decode(header).expect("a reply");
        let (data, rest) = rest.split_at(header.length as usize);
        found.push((header.option, header.kind, data.to_vec()));
        bytes = rest;
    }
    assert!(bytes.is_empty(), "half a reply");
    found
}

/// What is said brings these replies (their types; errors also have a message) and this end, in whatever pieces it
/// arrives.
#[track_caller]
fn check(said: &Said, expect: &[(u32, u32)], end: &End) {
    for step in [said.0.len(), 1, 7] {
        let (out, found) = feed(&said.0, step, false);
        let replies = replies(&out);
        let kinds: Vec<_> = replies.iter().map(|(option, kind, _)| (*option, *kind)).collect();
        assert_eq!(kinds, expect, "in pieces of {step}");
        assert_eq!(&found, end, "in pieces of {step}");
        for (_, kind, data) in replies {
            assert!(kind & rep::ERROR_BIT == 0 || !data.is_empty(), "an error without a message");
        }
    }
}

fn session(structured: bool, allocation: bool) -> Session {
    Session {
        size: 1 << 20,
        read_only: false,
        structured,
        allocation,
        block_sizes: BlockSizes { minimum: 512, preferred: 4096, maximum: 1 << 25 },
        trim: true,
        fast_zero: true,
        fua: true,
    }
}

const HELLO: u32 = 3;
const SR: u32 = opt::STRUCTURED_REPLY;
const SET: u32 = opt::SET_META_CONTEXT;
const LIST_META: u32 = opt::LIST_META_CONTEXT;
const ALLOC: &str = base_allocation::NAME;

#[test]
fn client_flags() {
    for flags in 0..4 {
        check(&Said::flags(flags), &[], &End::More);
    }
    for flags in [4, 0x8000_0000, u32::MAX] {
        check(&Said::flags(flags), &[], &End::HungUp);
    }
}

#[test]
fn list_tells_names_and_descriptions() {
    let said = Said::flags(HELLO).option(opt::LIST, b"");
    check(&said, &[(opt::LIST, rep::SERVER), (opt::LIST, rep::SERVER), (opt::LIST, rep::ACK)], &End::More);
    let (out, _) = feed(&said.0, 1, false);
    let data: Vec<_> = replies(&out).into_iter().map(|(_, _, data)| data).collect();
    assert_eq!(data, [&b"\0\0\0\x04diska disk"[..], b"\0\0\0\x06locked", b""]);
    check(&Said::flags(HELLO).option(opt::LIST, b"x"), &[(opt::LIST, rep::ERR_INVALID)], &End::More);
}

#[test]
fn go_starts_with_what_was_agreed() {
    let info = (opt::GO, rep::INFO);
    let granted = [info, info, info, info, (opt::GO, rep::ACK)];
    check(&Said::flags(HELLO).info(opt::GO, "disk"), &granted, &End::Started(session(false, false), 0));
    check(&Said::flags(HELLO).info(opt::GO, ""), &granted, &End::Started(session(false, false), 0));

    let (out, _) = feed(&Said::flags(HELLO).option(SR, b"").info(opt::GO, "disk").0, 1, false);
    let data: Vec<_> = replies(&out).into_iter().map(|(_, _, data)| data).collect();
    let flags = t::HAS_FLAGS
        | t::SEND_FLUSH
        | t::SEND_FUA
        | t::SEND_TRIM
        | t::SEND_WRITE_ZEROES
        | t::SEND_DF
        | t::CAN_MULTI_CONN
        | t::SEND_CACHE
        | t::SEND_FAST_ZERO;
    let export = [&[0, 0, 0, 0, 0, 0, 0, 0x10, 0, 0][..], &flags.to_be_bytes()].concat();
    assert_eq!(data[1], export);
    assert_eq!(data[2], b"\0\x01disk");
    assert_eq!(data[3], b"\0\x02a disk");
    assert_eq!(data[4], b"\0\x03\0\0\x02\0\0\0\x10\0\x02\0\0\0");
}

#[test]
fn requests_sent_early_are_left_for_the_transmission() {
    let mut said = Said::flags(HELLO).info(opt::GO, "disk");
    said.0.extend_from_slice(b"early");
    let (_, end) = feed(&said.0, said.0.len(), false);
    assert_eq!(end, End::Started(session(false, false), 5));
}

#[test]
fn info_and_refusals_leave_the_client_where_it_is() {
    let info = (opt::INFO, rep::INFO);
    let said = Said::flags(HELLO)
        .info(opt::INFO, "disk")
        .info(opt::INFO, "nope")
        .info(opt::GO, "nope")
        .info(opt::GO, "locked")
        .option(opt::GO, b"\0\0\0\x05disk\0\0")
        .option(opt::STARTTLS, b"")
        .option(opt::STARTTLS, b"x")
        .option(4, b"peek")
        .option(11, b"")
        .option(0xffff_ffff, b"data")
        .option(opt::ABORT, b"ignored");
    let expect = [
        info,
        info,
        info,
        info,
        (opt::INFO, rep::ACK),
        (opt::INFO, rep::ERR_UNKNOWN),
        (opt::GO, rep::ERR_UNKNOWN),
        (opt::GO, rep::ERR_POLICY),
        (opt::GO, rep::ERR_INVALID),
        (opt::STARTTLS, rep::ERR_UNSUP),
        (opt::STARTTLS, rep::ERR_INVALID),
        (4, rep::ERR_UNSUP),
        (11, rep::ERR_UNSUP),
        (0xffff_ffff, rep::ERR_UNSUP),
        (opt::ABORT, rep::ACK),
    ];
    check(&said, &expect, &End::Close);
}

#[test]
fn export_name_answers_without_a_reply_header() {
    for (flags, padding) in [(HELLO, 0), (1, EXPORT_NAME_PADDING), (0, EXPORT_NAME_PADDING)] {
        let (out, end) = feed(&Said::flags(flags).option(opt::EXPORT_NAME, b"disk").0, 1, false);
        assert_eq!(end, End::Started(session(false, false), 0));
        assert_eq!(out[..8], [0, 0, 0, 0, 0, 0x10, 0, 0]);
        assert_eq!(out[8..10], session(false, false).transmission_flags().to_be_bytes());
        assert_eq!(out[10..], vec![0; padding]);
    }
    for name in [&b"nope"[..], b"locked", b"\xff", &[b'x'; 5000], &[b'x'; 70_000]] {
        check(&Said::flags(HELLO).option(opt::EXPORT_NAME, name), &[], &End::HungUp);
    }
}

#[test]
fn metadata_contexts() {
    let begin = Said::flags(HELLO).option(SR, b"");
    let ack = (SR, rep::ACK);
    let ctx = |option| (option, rep::META_CONTEXT);
    let done = |option| (option, rep::ACK);

    for queries in [&[][..], &["base:"], &[ALLOC], &["x-y:z", ALLOC, "base:"]] {
        let said = begin.clone().meta(LIST_META, "disk", queries);
        check(&said, &[ack, ctx(LIST_META), done(LIST_META)], &End::More);
    }
    for queries in [&["x-y:"][..], &["base:other"], &["nonsense"]] {
        check(&begin.clone().meta(LIST_META, "disk", queries), &[ack, done(LIST_META)], &End::More);
    }
    for queries in [&[][..], &["base:"], &["qemu:dirty-bitmap:x"]] {
        check(&begin.clone().meta(SET, "disk", queries), &[ack, done(SET)], &End::More);
    }
    check(&begin.clone().meta(SET, "nope", &[ALLOC]), &[ack, (SET, rep::ERR_UNKNOWN)], &End::More);
    check(&begin.clone().option(SET, b"\0\0\0\0\0\0\0\x01"), &[ack, (SET, rep::ERR_INVALID)], &End::More);
    check(&Said::flags(HELLO).meta(SET, "disk", &[ALLOC]), &[(SET, rep::ERR_INVALID)], &End::More);
}

#[test]
fn a_context_holds_for_the_export_it_was_selected_for_and_the_last_selection_counts() {
    let begin = Said::flags(HELLO).option(SR, b"");
    let allocation = |said: Said| match feed(&said.0, 3, false).1 {
        End::Started(session, 0) => session.allocation,
        other => panic!("{other:?}"),
    };
    assert!(allocation(begin.clone().meta(SET, "disk", &[ALLOC]).info(opt::GO, "disk")));
    assert!(!allocation(begin.clone().meta(SET, "", &[ALLOC]).info(opt::GO, "disk")));
    assert!(!allocation(begin.clone().meta(SET, "disk", &[ALLOC]).meta(SET, "disk", &[]).info(opt::GO, "disk")));
    assert!(!allocation(begin.clone().meta(SET, "disk", &[ALLOC]).meta(SET, "nope", &[ALLOC]).info(opt::GO, "disk")));
    assert!(!allocation(begin.meta(LIST_META, "disk", &[ALLOC]).info(opt::GO, "disk")));
}

#[test]
fn long_options_are_skipped_and_refused() {
    let long = vec![0x5a; MAX_OPTION_DATA + 1];
    let said = Said::flags(HELLO).option(opt::GO, &long).option(77, &long).option(opt::LIST, b"x");
    let expect = [(opt::GO, rep::ERR_TOO_BIG), (77, rep::ERR_TOO_BIG), (opt::LIST, rep::ERR_INVALID)];
    for step in [1000, said.0.len()] {
        let (out, end) = feed(&said.0, step, false);
        assert_eq!(replies(&out).iter().map(|r| (r.0, r.1)).collect::<Vec<_>>(), expect);
        assert_eq!(end, End::More);
    }
}

#[test]
fn a_server_that_shuts_down_says_so() {
    let said = Said::flags(HELLO).option(opt::LIST, b"").info(opt::GO, "disk").option(opt::ABORT, b"");
    let (out, end) = feed(&said.0, 5, true);
    let expect = [(opt::LIST, rep::ERR_SHUTDOWN), (opt::GO, rep::ERR_SHUTDOWN), (opt::ABORT, rep::ACK)];
    assert_eq!(replies(&out).iter().map(|r| (r.0, r.1)).collect::<Vec<_>>(), expect);
    assert_eq!(end, End::Close);
    assert_eq!(feed(&Said::flags(HELLO).option(opt::EXPORT_NAME, b"disk").0, 9, true).1, End::HungUp);
}

#[test]
fn who_does_not_speak_the_protocol_is_hung_up_on() {
    let mut said = Said::flags(HELLO);
    said.0.extend_from_slice(b"GET / HTTP/1.1\r\n\r\n");
    check(&said, &[], &End::HungUp);
}

proptest! {
    /// Whatever comes: no panic, and no matter in which pieces it comes.
    #[test]
    fn any_bytes_in_any_pieces(bytes in proptest::collection::vec(any::<u8>(), 0..200), step in 1usize..50) {
        let mut said = Said::flags(HELLO).0;
        said.extend_from_slice(&bytes);
        prop_assert_eq!(feed(&said, step, false), feed(&said, said.len(), false));
    }

    /// The same for data of options that are known.
    #[test]
    fn any_option_data(
        options in proptest::collection::vec((1u32..12, proptest::collection::vec(any::<u8>(), 0..40)), 0..6),
        step in 1usize..50,
    ) {
        let said = options.iter().fold(Said::flags(HELLO), |said, (option, data)| said.option(*option, data));
        prop_assert_eq!(feed(&said.0, step, false), feed(&said.0, said.0.len(), false));
    }
}
