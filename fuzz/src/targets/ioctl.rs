//! The DM ioctl codec: a request as the daemon reads it, and an answer as a client does.

use udm_control::codec::{Command, Flags, Reply, Request, Response};

/// Words of the binary form.
pub const WORDS: &[&[u8]] = &[b"linear\0", b"vol\0", b"\x04\0\0\0", b"\x38\x01\0\0", b"\0\0\0\0\0\0\0\0", b"0 0 0 0\0"];

/// A request: the first byte chooses the command, the rest is its buffer.
pub fn fuzz_ioctl(data: &[u8]) {
    let Some((first, buf)) = data.split_first() else { return };
    let command = Command::ALL[usize::from(*first) % Command::ALL.len()];
    let Ok(request) = Request::parse(command.ioctl_number(), buf) else { return };
    assert_eq!(request.command(), command);
    request.device_key();
    let _ = (request.new_name(), request.message(), request.geometry());
    let mut reply = Reply::to(&request);
    let Ok(targets) = request.targets() else { return answer(reply, buf) };
    assert!(targets.len() * 40 <= buf.len(), "each target takes its place in the buffer");
    // What was asked is a table, and what is answered is one.
    reply.targets(targets.iter().cloned());
    let bytes = reply.finish();
    let response = Response::parse(&bytes).expect("an answer can be read");
    if !response.is_full() {
        let read: Vec<_> = response.targets().expect("its targets too");
        let same = |l: &udm_control::codec::TargetSpec<'_>, r: &udm_control::codec::TargetSpec<'_>| {
            (l.start, l.len, l.target_type, l.params) == (r.start, r.len, r.target_type, r.params)
        };
        assert!(
            read.len() == targets.len() && read.iter().zip(&targets).all(|(l, r)| same(l, r)),
            "{read:?} {targets:?}"
        );
    }
}

fn answer(reply: Reply, buf: &[u8]) {
    let bytes = reply.finish();
    assert!(bytes.len() <= buf.len().max(Reply::version_only().len()), "an answer fits where the request was");
    let response = Response::parse(&bytes).expect("an answer can be read");
    assert!(!response.header().flags.contains(Flags::BUFFER_FULL), "nothing was to be put in");
}

/// An answer, from a daemon that may be anyone.
pub fn fuzz_answer(data: &[u8]) {
    let Ok(response) = Response::parse(data) else { return };
    let bounded = |count: usize| assert!(count <= data.len(), "{count} entries in {} bytes", data.len());
    bounded(response.names().map_or(0, |names| names.len()));
    bounded(response.targets().map_or(0, |targets| targets.len()));
    bounded(response.deps().map_or(0, |deps| deps.len()));
    bounded(response.versions().map_or(0, |versions| versions.len()));
    let _ = response.message_output();
}
