//! vhost-user-blk: a ring in the memory of a guest, and what a front end says.

use udm_export::vhost_user::fuzz;

/// Parts of descriptors and messages: flags, lengths, kinds of requests.
pub const WORDS: &[&[u8]] = &[
    b"\x10\0\0\0\x01\0\x01\0",
    b"\0\x02\0\0\x03\0\x02\0",
    b"\x01\0\0\0\x02\0\0\0",
    b"\x30\0\0\0\x04\0\0\0",
    b"\x0b\0\0\0",
    b"\x0d\0\0\0",
    b"\xff\xff\xff\xff",
    b"\xff\xff\xff\xff\xff\xff\xff\xff",
    b"\x02\0\0\0\x09\0\0\0\x08\0\0\0",
    b"\x10\0\0\0\x01\0\0\0\x08\0\0\0",
    b"\x08\0\0\0\x01\0\0\0\x08\0\0\0",
    b"\x18\0\0\0\x01\0\0\0\x48\0\0\0",
    b"\x1f\0\0\0\x01\0\0\0\x18\0\0\0",
    b"\x00\0\0\x70\x01\0\0\0",
];

/// A ring whose memory holds these bytes.
pub fn fuzz_ring(data: &[u8]) {
    fuzz::ring(data);
}

/// What a front end says, without descriptors.
pub fn fuzz_messages(data: &[u8]) {
    fuzz::messages(data);
}
