//! Hand-over messages over a unix socket: a head of 16 bytes with the descriptors, a text, and bytes.
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 4 | `udmP` |
//! | 4 | 4 | length of the text, little-endian |
//! | 8 | 4 | length of the bytes |
//! | 12 | 4 | how many descriptors come along |

use super::HandOverMessage;
use rustix::cmsg_space;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    recvmsg, sendmsg, sockopt,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::unix::net::UnixStream;
use std::time::Duration;

const MAGIC: &[u8; 4] = b"udmP";
const HEAD: usize = 16;
/// The longest text: a state of many devices.
const MAX_TEXT: usize = 256 << 20;
/// The longest bytes: what a client has sent of a request, and what it has not taken of replies.
const MAX_BYTES: usize = 128 << 20;
/// Descriptors of one message.
const MAX_FDS: usize = 64;

/// The text of a message.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Text {
    kind: String,
    name: String,
    state: Value,
}

/// The link between two daemons.
pub(crate) struct Link(UnixStream);

impl Link {
    pub(crate) fn new(stream: UnixStream) -> Self {
        Self(stream)
    }

    /// The process at the other end, as the kernel knows it.
    pub(super) fn peer(&self) -> Option<i32> {
        Some(sockopt::socket_peercred(&self.0).ok()?.pid.as_raw_pid())
    }

    /// Sends a message; its descriptors stay open here. Blocks, at most so long for each part.
    pub(crate) fn send(&self, message: &HandOverMessage, patience: Duration) -> io::Result<()> {
        let HandOverMessage { kind, name, state, bytes, fds } = message;
        let text = Text { kind: kind.clone(), name: name.clone(), state: state.clone() };
        let text = serde_json::to_vec(&text)?;
        if text.len() > MAX_TEXT || bytes.len() > MAX_BYTES || fds.len() > MAX_FDS {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("{kind} {name:?} is too large to be sent"),
            ));
        }
        self.0.set_write_timeout(Some(patience))?;
        let mut head = [0; HEAD];
        head[..4].copy_from_slice(MAGIC);
        for (at, number) in [(4, text.len()), (8, bytes.len()), (12, fds.len())] {
            // Checked above.
            head[at..at + 4].copy_from_slice(&(number as u32).to_le_bytes());
        }
        let borrowed: Vec<BorrowedFd<'_>> = fds.iter().map(AsFd::as_fd).collect();
        let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(MAX_FDS))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !borrowed.is_empty() && !control.push(SendAncillaryMessage::ScmRights(&borrowed)) {
            return Err(io::Error::other("no room for the descriptors"));
        }
        let sent = loop {
            match sendmsg(&self.0, &[IoSlice::new(&head)], &mut control, SendFlags::NOSIGNAL) {
                Err(rustix::io::Errno::INTR) => {}
                other => break other?,
            }
        };
        (&self.0).write_all(&head[sent..])?;
        (&self.0).write_all(&text)?;
        (&self.0).write_all(bytes)
    }

    /// Receives a message. Blocks, at most so long for each part.
    pub(crate) fn receive(&self, patience: Duration) -> io::Result<HandOverMessage> {
        let invalid = |text: &str| io::Error::new(io::ErrorKind::InvalidData, text.to_owned());
        self.0.set_read_timeout(Some(patience))?;
        let (head, fds) = self.head()?;
        let number = |at: usize| head[at..at + 4].iter().rev().fold(0usize, |n, byte| n << 8 | usize::from(*byte));
        let (text, bytes, count) = (number(4), number(8), number(12));
        if head[..4] != *MAGIC || text > MAX_TEXT || bytes > MAX_BYTES {
            return Err(invalid("what the other daemon sends is no hand-over message"));
        }
        if fds.len() != count {
            return Err(invalid("descriptors were lost on the way: the limit of this process may be reached"));
        }
        let Text { kind, name, state } = serde_json::from_slice(&self.exactly(text)?)?;
        Ok(HandOverMessage { kind, name, state, bytes: self.exactly(bytes)?, fds })
    }

    fn head(&self) -> io::Result<([u8; HEAD], Vec<OwnedFd>)> {
        let (mut head, mut filled, mut fds) = ([0; HEAD], 0, Vec::new());
        while filled < HEAD {
            let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(MAX_FDS))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let into = &mut [IoSliceMut::new(&mut head[filled..])];
            let got = match recvmsg(&self.0, into, &mut control, RecvFlags::CMSG_CLOEXEC) {
                Err(rustix::io::Errno::INTR) => continue,
                Err(rustix::io::Errno::AGAIN) => return Err(io::ErrorKind::TimedOut.into()),
                other => other?.bytes,
            };
            for message in control.drain() {
                if let RecvAncillaryMessage::ScmRights(more) = message {
                    fds.extend(more);
                }
            }
            if got == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            filled += got;
        }
        Ok((head, fds))
    }

    /// As much as was announced. Memory is taken as it comes.
    fn exactly(&self, len: usize) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        (&self.0).take(len as u64).read_to_end(&mut bytes)?;
        if bytes.len() < len { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(bytes) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    const PATIENCE: Duration = Duration::from_secs(20);

    #[test]
    fn what_is_sent_arrives() {
        let (one, other) = UnixStream::pair().unwrap();
        let (one, other) = (Link::new(one), Link::new(other));
        let sender = std::thread::spawn(move || {
            for count in [0, 1, 5] {
                let mut message = HandOverMessage::new("kind", "name \"\u{e9}\"", [1, 2]).unwrap();
                message.bytes = vec![7; count * 100_000];
                message.fds = (0..count).map(|_| File::open("/dev/null").unwrap().into()).collect();
                one.send(&message, PATIENCE).unwrap();
            }
        });
        for count in [0, 1, 5] {
            let message = other.receive(PATIENCE).unwrap();
            assert_eq!((message.kind.as_str(), message.name.as_str()), ("kind", "name \"\u{e9}\""));
            assert_eq!(message.read::<Vec<u32>>().unwrap(), [1, 2]);
            assert_eq!((message.bytes.len(), message.fds.len()), (count * 100_000, count));
        }
        sender.join().unwrap();
        assert_eq!(other.receive(PATIENCE).err().unwrap().kind(), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn nonsense_is_refused() {
        let text = br#"{"kind":"k","name":"n","state":null}"#;
        let whole = |magic: &[u8], text: &[u8], len: usize, bytes: u32, fds: u32| {
            let numbers = [len as u32, bytes, fds].map(u32::to_le_bytes).concat();
            [magic, &numbers, text].concat()
        };
        for bytes in [
            whole(b"udmQ", text, text.len(), 0, 0),
            whole(MAGIC, text, text.len(), 0, 1),
            whole(MAGIC, text, text.len() + 1, 0, 0),
            whole(MAGIC, text, text.len() - 1, 0, 0),
            whole(MAGIC, text, u32::MAX as usize, 0, 0),
            whole(MAGIC, text, text.len(), u32::MAX, 0),
            whole(MAGIC, text, text.len(), 1 << 20, 0),
            whole(MAGIC, br#"{"kind":"k","name":"n","state":null,"x":1}"#, 42, 0, 0),
            MAGIC.to_vec(),
            Vec::new(),
        ] {
            let (mut one, other) = UnixStream::pair().unwrap();
            one.write_all(&bytes).unwrap();
            drop(one);
            assert!(Link::new(other).receive(PATIENCE).is_err(), "{bytes:?}");
        }
    }
}
