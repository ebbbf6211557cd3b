//! How a command that is to run within comes to its supervisor: over a socket of packets, one request and one answer at
//! a time, with descriptors.
//!
//! 1. `enter`, with a line for each block device that is to be there: the answer has the mount namespace.
//! 2. `listener`, with the filter's listener: after the answer, `go`, calls are answered.
//!
//! An answer that begins with `no ` says why not.

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketAddrUnix, SocketFlags, SocketType, recvmsg, sendmsg,
};
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::path::Path;

/// The longest message.
const LONGEST: usize = 64 << 10;

/// One end of a conversation.
pub(crate) struct Meeting(OwnedFd);

pub(crate) const ENTER: &str = "enter";
pub(crate) const LISTENER: &str = "listener";
pub(crate) const GO: &str = "go";
const NO: &str = "no ";

impl Meeting {
    /// Goes to a supervisor.
    pub(crate) fn connect(path: &Path) -> io::Result<Self> {
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
        Ok(Self(socket))
    }

    /// Where a supervisor waits for them.
    pub(crate) fn listen(path: &Path) -> io::Result<OwnedFd> {
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
        rustix::net::listen(&socket, 64)?;
        Ok(socket)
    }

    pub(crate) fn accept(listener: impl AsFd) -> io::Result<Self> {
        Ok(Self(rustix::net::accept_with(listener, SocketFlags::CLOEXEC)?))
    }

    /// Says something, with at most one descriptor.
    pub(crate) fn say(&self, text: &str, descriptor: Option<BorrowedFd<'_>>) -> io::Result<()> {
        let descriptors: Vec<BorrowedFd<'_>> = descriptor.into_iter().collect();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() {
            ancillary.push(SendAncillaryMessage::ScmRights(&descriptors));
        }
        sendmsg(&self.0, &[IoSlice::new(text.as_bytes())], &mut ancillary, SendFlags::NOSIGNAL)?;
        Ok(())
    }

    /// Says that it is not to be.
    pub(crate) fn refuse(&self, why: &str) -> io::Result<()> {
        self.say(&format!("{NO}{why}"), None)
    }

    /// What the other says.
    ///
    /// # Errors
    /// `UnexpectedEof`: it has gone. `Other`: it says no, and why.
    pub(crate) fn hear(&self) -> io::Result<(String, Option<OwnedFd>)> {
        let mut bytes = vec![0; LONGEST];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let received = recvmsg(&self.0, &mut [IoSliceMut::new(&mut bytes)], &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
        let descriptor = ancillary.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut all) => all.next(),
            _ => None,
        });
        if received.bytes == 0 {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the supervisor has gone"));
        }
        let text = String::from_utf8_lossy(&bytes[..received.bytes]).into_owned();
        match text.strip_prefix(NO) {
            Some(why) => Err(io::Error::other(why.to_owned())),
            None => Ok((text, descriptor)),
        }
    }

    /// The user at the other end.
    pub(crate) fn peer(&self) -> io::Result<u32> {
        Ok(rustix::net::sockopt::socket_peercred(&self.0)?.uid.as_raw())
    }
}
