//! What servers say, and what comes of it.

use super::*;
use crate::wire::consts::{info, transmission as t};
use crate::wire::option::{greeting, put_reply};
use std::io::Cursor;

/// A server's side, said without listening, and what the client said.
struct Script {
    says: Cursor<Vec<u8>>,
    heard: Vec<u8>,
}

impl Read for Script {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.says.read(into)
    }
}

impl Write for Script {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.heard.write(bytes)
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn says(flags: u16, replies: &[(u32, u32, &[u8])]) -> Vec<u8> {
    let mut bytes = greeting(flags).to_vec();
    for (option, kind, data) in replies {
        put_reply(&mut bytes, *option, *kind, data);
    }
    bytes
}

fn outcome(bytes: &[u8]) -> Result<Agreed, String> {
    let mut script = Script { says: Cursor::new(bytes.to_vec()), heard: Vec::new() };
    negotiate(&mut script, "disk").map_err(|e| e.to_string())
}

const NEW: u16 = handshake::FIXED_NEWSTYLE | handshake::NO_ZEROES;
const SR: u32 = opt::STRUCTURED_REPLY;
const SET: u32 = opt::SET_META_CONTEXT;
const SIZE: &[u8] = &[0, info::EXPORT as u8, 0, 0, 0, 0, 0, 0x10, 0, 0, 1, 0x6d];
const SIZES: &[u8] = &[0, info::BLOCK_SIZE as u8, 0, 0, 2, 0, 0, 0, 0x10, 0, 2, 0, 0, 0];

#[test]
fn a_full_handshake() {
    let context = [&[0, 0, 0, 9][..], b"base:allocation"].concat();
    let replies = [
        (SR, rep::ACK, &b""[..]),
        (SET, rep::META_CONTEXT, &context),
        (SET, rep::ACK, b""),
        (opt::GO, rep::INFO, SIZE),
        (opt::GO, rep::INFO, &[0, 99, 1, 2, 3]),
        (opt::GO, rep::INFO, SIZES),
        (opt::GO, rep::ACK, b""),
    ];
    let bytes = says(NEW, &replies);
    let mut script = Script { says: Cursor::new(bytes.clone()), heard: Vec::new() };
    let agreed = negotiate(&mut script, "disk").expect("agreed");
    let expect = Agreed {
        size: 1 << 20,
        flags: 0x16d,
        block_sizes: Some(BlockSizes { minimum: 512, preferred: 4096, maximum: 1 << 25 }),
        structured: true,
        allocation: Some(9),
    };
    assert_eq!(agreed, expect);
    assert_eq!(script.heard[..4], [0, 0, 0, 3]);
    assert!(script.heard.ends_with(b"\0\0\0\x04disk\0\x01\0\x03"), "GO asks for block sizes");
    // A server that stops anywhere is an error, not a wait and not a panic.
    for len in 0..bytes.len() {
        assert!(outcome(&bytes[..len]).is_err(), "cut to {len}");
    }
}

#[test]
fn servers_that_can_less() {
    let unsup = |option| (option, rep::ERR_UNSUP, &b"what?"[..]);
    let plain = says(NEW, &[unsup(SR), (opt::GO, rep::INFO, SIZE), (opt::GO, rep::ACK, b"")]);
    let agreed = outcome(&plain).expect("agreed");
    assert_eq!((agreed.structured, agreed.allocation, agreed.block_sizes), (false, None, None));

    // Fixed newstyle without GO; then newstyle that is not fixed.
    for (flags, replies, padding) in [(NEW, &[unsup(SR), unsup(opt::GO)][..], 0), (0, &[], EXPORT_NAME_PADDING)] {
        let mut bytes = says(flags, replies);
        bytes.extend_from_slice(&SIZE[2..]);
        bytes.resize(bytes.len() + padding, 0);
        let agreed = outcome(&bytes).expect("agreed");
        assert_eq!((agreed.size, agreed.flags, agreed.structured), (1 << 20, 0x16d, false));
    }
}

#[test]
fn servers_that_refuse_or_babble() {
    #[track_caller]
    fn check(bytes: &[u8], expect: &str) {
        let error = outcome(bytes).expect_err("refused");
        assert!(error.contains(expect), "{error}");
    }
    let go = |kind, data| says(NEW, &[(SR, rep::ERR_UNSUP, b""), (opt::GO, kind, data)]);
    check(&go(rep::ERR_UNKNOWN, b""), "does not know the export \"disk\"");
    check(&go(rep::ERR_POLICY, b"closed"), "closed");
    check(&go(rep::ERR_TLS_REQD, b""), "TLS");
    check(&go(rep::ACK, b""), "without a size");
    check(&go(rep::INFO, &SIZES[..9]), "breaks the protocol: preferred block size: 4 bytes expected, 3 left");
    let sized = |sizes| {
        let go = [(opt::GO, rep::INFO, SIZE), (opt::GO, rep::INFO, sizes), (opt::GO, rep::ACK, b"")];
        says(NEW, &[&[(SR, rep::ERR_UNSUP, &b""[..])], &go[..]].concat())
    };
    let sizes = "block sizes that cannot be: ";
    check(&sized(&[0, 3, 0, 0, 3, 0, 0, 0, 16, 0, 2, 0, 0, 0]), &format!("{sizes}the minimum is 768 bytes"));
    check(&sized(&[0, 3, 0, 0, 2, 0, 0, 0, 1, 0, 2, 0, 0, 0]), &format!("{sizes}the preferred size is 256 bytes"));
    check(&sized(&[0, 3, 0, 0, 2, 0, 0, 0, 16, 0, 0, 0, 8, 0]), &format!("{sizes}the maximum is 2048 bytes"));
    check(&says(NEW, &[(opt::LIST, rep::ACK, b"")]), "another option");
    check(&says(NEW, &[(SR, rep::INFO, &vec![0; MAX_OPTION_DATA + 1])]), "more than 64 KiB");
    check(&says(NEW, &vec![(SR, rep::INFO, &b""[..]); MAX_REPLIES]), "without an end");
    check(b"NBDMAGIC\0\0\x42\x02\x81\x86\x12\x53\0\0", "newstyle");
    check(b"SSH-2.0-OpenSSH_9.2p1 Debian", "not an NBD server");
}

#[test]
fn flags_count_only_together_with_has_flags() {
    assert!(has(t::HAS_FLAGS | t::SEND_FLUSH, t::SEND_FLUSH));
    assert!(!has(t::SEND_FLUSH, t::SEND_FLUSH));
    assert!(!has(t::HAS_FLAGS, t::SEND_FLUSH));
}
