//! Messages of vhost-user and how they go over a socket, for both sides (QEMU's `docs/interop/vhost-user.rst`, 10.0).
//!
//! # Invariants
//! - A message has at most [`MAX_BODY`] bytes and [`MAX_FDS`] descriptors: more is refused before it is received.
//! - Nothing here blocks: a message that has arrived in part waits in its [`Inbox`].

use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use serde::{Deserialize, Serialize};
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;

/// Bytes of a message's body at most.
pub(super) const MAX_BODY: usize = 4096;
/// Descriptors that come with a message at most; the largest memory table has 8.
pub(super) const MAX_FDS: usize = 16;

const HEADER: usize = 12;
const VERSION: u32 = 1;
const VERSION_MASK: u32 = 3;
const REPLY: u32 = 1 << 2;
const NEED_REPLY: u32 = 1 << 3;

/// What a front end asks.
pub(super) mod request {
    pub(crate) const GET_FEATURES: u32 = 1;
    pub(crate) const SET_FEATURES: u32 = 2;
    pub(crate) const SET_OWNER: u32 = 3;
    pub(crate) const RESET_OWNER: u32 = 4;
    pub(crate) const SET_MEM_TABLE: u32 = 5;
    pub(crate) const SET_VRING_NUM: u32 = 8;
    pub(crate) const SET_VRING_ADDR: u32 = 9;
    pub(crate) const SET_VRING_BASE: u32 = 10;
    pub(crate) const GET_VRING_BASE: u32 = 11;
    pub(crate) const SET_VRING_KICK: u32 = 12;
    pub(crate) const SET_VRING_CALL: u32 = 13;
    pub(crate) const SET_VRING_ERR: u32 = 14;
    pub(crate) const GET_PROTOCOL_FEATURES: u32 = 15;
    pub(crate) const SET_PROTOCOL_FEATURES: u32 = 16;
    pub(crate) const GET_QUEUE_NUM: u32 = 17;
    pub(crate) const SET_VRING_ENABLE: u32 = 18;
    pub(crate) const SET_BACKEND_REQ_FD: u32 = 21;
    pub(crate) const GET_CONFIG: u32 = 24;
    pub(crate) const SET_CONFIG: u32 = 25;
    pub(crate) const GET_INFLIGHT_FD: u32 = 31;
    pub(crate) const SET_INFLIGHT_FD: u32 = 32;
    pub(crate) const RESET_DEVICE: u32 = 34;
    pub(crate) const GET_MAX_MEM_SLOTS: u32 = 36;
    pub(crate) const ADD_MEM_REG: u32 = 37;
    pub(crate) const REM_MEM_REG: u32 = 38;
}

/// What a back end says on its own socket: the configuration has changed.
pub(super) const BACKEND_CONFIG_CHANGE: u32 = 2;

/// Features of the protocol, as bits.
pub(super) mod protocol {
    pub(crate) const MQ: u64 = 1 << 0;
    pub(crate) const REPLY_ACK: u64 = 1 << 3;
    pub(crate) const BACKEND_REQ: u64 = 1 << 5;
    pub(crate) const CONFIG: u64 = 1 << 9;
    pub(crate) const INFLIGHT_SHMFD: u64 = 1 << 12;
    pub(crate) const RESET_DEVICE: u64 = 1 << 13;
    pub(crate) const CONFIGURE_MEM_SLOTS: u64 = 1 << 15;
}

/// In the number of a vring whose descriptor is to be set: there is none.
pub(super) const NO_FD: u64 = 1 << 8;

/// A message as it was received.
#[derive(Debug)]
pub(super) struct Message {
    pub(super) request: u32,
    flags: u32,
    body: Vec<u8>,
    pub(super) fds: Vec<OwnedFd>,
}

impl Message {
    pub(super) fn needs_reply(&self) -> bool {
        self.flags & NEED_REPLY != 0
    }

    pub(super) fn is_reply(&self) -> bool {
        self.flags & REPLY != 0
    }

    pub(super) fn body(&self) -> &[u8] {
        &self.body
    }

    /// Reads the body from its start.
    pub(super) fn fields(&self) -> Fields<'_> {
        Fields { left: &self.body, len: self.body.len() }
    }

    /// The one descriptor that came along.
    pub(super) fn take_fd(&mut self) -> Result<OwnedFd, String> {
        match self.fds.len() {
            1 => Ok(self.fds.remove(0)),
            n => Err(format!("{n} descriptors came along; expected one")),
        }
    }
}

/// The numbers of a body, one after the other, in the machine's order.
pub(super) struct Fields<'a> {
    left: &'a [u8],
    len: usize,
}

impl<'a> Fields<'a> {
    pub(super) fn bytes(&mut self, n: usize) -> Result<&'a [u8], String> {
        let Some((head, left)) = self.left.split_at_checked(n) else {
            return Err(format!("a body of {} bytes is too short", self.len));
        };
        self.left = left;
        Ok(head)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], String> {
        Ok(self.bytes(N)?.try_into().expect("as many as were asked for"))
    }

    pub(super) fn u16(&mut self) -> Result<u16, String> {
        self.array().map(u16::from_ne_bytes)
    }

    pub(super) fn u32(&mut self) -> Result<u32, String> {
        self.array().map(u32::from_ne_bytes)
    }

    pub(super) fn u64(&mut self) -> Result<u64, String> {
        self.array().map(u64::from_ne_bytes)
    }

    /// What has not been read.
    pub(super) fn rest(self) -> &'a [u8] {
        self.left
    }
}

/// A region of memory, as the memory table and its single messages have it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RegionSpec {
    /// Its address in the guest.
    pub(super) guest: u64,
    /// Bytes.
    pub(super) size: u64,
    /// Its address in the front end.
    pub(super) user: u64,
    /// Where it begins in the file.
    pub(super) offset: u64,
}

impl RegionSpec {
    pub(super) fn read(fields: &mut Fields<'_>) -> Result<Self, String> {
        Ok(Self { guest: fields.u64()?, size: fields.u64()?, user: fields.u64()?, offset: fields.u64()? })
    }

    pub(super) fn bytes(&self) -> [u8; 32] {
        let mut out = [0; 32];
        for (to, number) in out.chunks_exact_mut(8).zip([self.guest, self.size, self.user, self.offset]) {
            to.copy_from_slice(&number.to_ne_bytes());
        }
        out
    }
}

/// Why a connection cannot go on.
#[derive(Debug, thiserror::Error)]
pub(super) enum WireError {
    /// The other side has closed.
    #[error("it has hung up")]
    Closed,
    /// It does not speak the protocol.
    #[error("{0}")]
    Broken(String),
    /// The system's.
    #[error("{0}")]
    Io(#[from] io::Error),
}

impl From<Errno> for WireError {
    fn from(errno: Errno) -> Self {
        match errno {
            Errno::PIPE | Errno::CONNRESET => Self::Closed,
            errno => Self::Io(errno.into()),
        }
    }
}

/// What has arrived of the next message.
#[derive(Default)]
pub(super) struct Inbox {
    bytes: Vec<u8>,
    fds: Vec<OwnedFd>,
}

impl Inbox {
    /// What another process has received of a message.
    pub(super) fn of(bytes: Vec<u8>, fds: Vec<OwnedFd>) -> Result<Self, String> {
        let this = Self { bytes, fds };
        match this.wanted() {
            Ok(wanted) if this.bytes.len() <= wanted && this.fds.len() <= MAX_FDS => Ok(this),
            Ok(wanted) => Err(format!("{} of {wanted} bytes of a message", this.bytes.len())),
            Err(error) => Err(error.to_string()),
        }
    }

    /// What has been received, for another process.
    pub(super) fn into_parts(self) -> (Vec<u8>, Vec<OwnedFd>) {
        (self.bytes, self.fds)
    }

    /// The next message if all of it has arrived. Does not block when the socket does not.
    pub(super) fn receive(&mut self, socket: impl AsFd) -> Result<Option<Message>, WireError> {
        loop {
            let wanted = self.wanted()?;
            if self.bytes.len() == wanted {
                return Ok(Some(self.take()));
            }
            let start = self.bytes.len();
            self.bytes.resize(wanted, 0);
            let result = receive_some(&socket, &mut self.bytes[start..], &mut self.fds);
            self.bytes.truncate(start + *result.as_ref().unwrap_or(&0));
            match result {
                Ok(0) => return Err(WireError::Closed),
                Ok(_) => {}
                Err(WireError::Io(e)) if e.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) => return Err(error),
            }
        }
    }

    fn word(&self, index: usize) -> u32 {
        u32::from_ne_bytes(self.bytes[index * 4..][..4].try_into().expect("four bytes"))
    }

    /// Bytes of the message as far as it is known.
    fn wanted(&self) -> Result<usize, WireError> {
        if self.bytes.len() < HEADER {
            return Ok(HEADER);
        }
        let (flags, size) = (self.word(1), self.word(2) as usize);
        if flags & VERSION_MASK != VERSION {
            return Err(WireError::Broken(format!("a message has the flags {flags:#x}; expected version 1")));
        }
        if size > MAX_BODY {
            let text = format!("a message {} of {size} bytes; expected at most {MAX_BODY}", self.word(0));
            return Err(WireError::Broken(text));
        }
        Ok(HEADER + size)
    }

    fn take(&mut self) -> Message {
        let (request, flags) = (self.word(0), self.word(1));
        let mut body = std::mem::take(&mut self.bytes);
        body.drain(..HEADER);
        Message { request, flags, body, fds: std::mem::take(&mut self.fds) }
    }
}

fn receive_some(socket: impl AsFd, into: &mut [u8], fds: &mut Vec<OwnedFd>) -> Result<usize, WireError> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC;
    let received = loop {
        match recvmsg(&socket, &mut [IoSliceMut::new(into)], &mut control, flags) {
            Err(Errno::INTR) => {}
            other => break other?,
        }
    };
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(more) = message {
            fds.extend(more);
        }
    }
    if received.flags.contains(ReturnFlags::CTRUNC) || fds.len() > MAX_FDS {
        return Err(WireError::Broken(format!("more than {MAX_FDS} descriptors came with a message")));
    }
    Ok(received.bytes)
}

/// What is sent: a request, or the reply to one.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// A request that is not answered unless its kind always is.
    Request,
    /// A request that is to be answered.
    Acked,
    /// A reply.
    Reply,
}

/// Sends a message. A message is short and the other side reads each before it sends the next, so that a socket that is
/// full belongs to one that does not follow the protocol: an error, not a wait.
pub(super) fn send(
    socket: impl AsFd,
    request: u32,
    kind: Kind,
    body: &[u8],
    fds: &[rustix::fd::BorrowedFd<'_>],
) -> Result<(), WireError> {
    debug_assert!(body.len() <= MAX_BODY && fds.len() <= MAX_FDS, "messages of our own are short");
    let flags = VERSION
        | match kind {
            Kind::Request => 0,
            Kind::Acked => NEED_REPLY,
            Kind::Reply => REPLY,
        };
    let mut bytes = Vec::with_capacity(HEADER + body.len());
    for word in [request, flags, body.len() as u32] {
        bytes.extend(word.to_ne_bytes());
    }
    bytes.extend(body);
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(fds));
    }
    let sent = loop {
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        match sendmsg(&socket, &[IoSlice::new(&bytes)], &mut control, flags) {
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => break 0,
            other => break other?,
        }
    };
    match sent == bytes.len() {
        true => Ok(()),
        false => Err(WireError::Broken("it does not read what it is sent".into())),
    }
}
