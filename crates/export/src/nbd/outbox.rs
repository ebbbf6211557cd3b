//! Replies that wait to be sent: gathered, and sent many at a time.

use super::pool::{Buf, Pool};
use rustix::fd::BorrowedFd;
use rustix::net::{SendAncillaryBuffer, SendFlags, sendmsg};
use std::collections::VecDeque;
use std::io::IoSlice;

/// Pieces in one send. A reply with data is two.
const GATHER: usize = 128;
/// Bytes of sent headers at which the rest are moved to the front.
const COMPACT: usize = 4096;
/// Bytes of header memory that an idle connection may keep.
const KEEP: usize = 8192;

enum Piece {
    /// This many bytes of `small`.
    Small(usize),
    /// The front of a buffer.
    Data(Buf, usize),
}

impl Piece {
    fn len(&self) -> usize {
        match self {
            Self::Small(len) | Self::Data(_, len) => *len,
        }
    }
}

/// The replies of one connection, in the order in which they leave.
#[derive(Default)]
pub(super) struct Outbox {
    /// Headers and other short things, one after another.
    small: Vec<u8>,
    /// How much of `small` has been sent.
    small_sent: usize,
    pieces: VecDeque<Piece>,
    /// How much of the first piece has been sent.
    first_sent: usize,
    /// Bytes that wait.
    bytes: usize,
}

/// What a send came to.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Sent {
    /// Everything is out.
    All,
    /// The socket is full.
    Full,
}

impl Outbox {
    /// Whether nothing waits.
    pub(super) fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Bytes that wait.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Appends short things: `put` writes them to the end of the vector.
    pub(super) fn put(&mut self, put: impl FnOnce(&mut Vec<u8>)) {
        let before = self.small.len();
        put(&mut self.small);
        let len = self.small.len() - before;
        self.bytes += len;
        match self.pieces.back_mut() {
            Some(Piece::Small(last)) => *last += len,
            _ if len > 0 => self.pieces.push_back(Piece::Small(len)),
            _ => {}
        }
    }

    /// Appends the first `len` bytes of a buffer.
    pub(super) fn put_data(&mut self, buf: Buf, len: usize) {
        self.bytes += len;
        self.pieces.push_back(Piece::Data(buf, len));
    }

    /// Sends until all is out or the socket is full. Buffers that are out go back to `pool`; their sizes are added
    /// to `freed`.
    pub(super) fn send(
        &mut self,
        socket: BorrowedFd<'_>,
        pool: &mut Pool,
        freed: &mut usize,
    ) -> Result<Sent, rustix::io::Errno> {
        while !self.pieces.is_empty() {
            let mut gathered = [IoSlice::new(&[]); GATHER];
            let (count, len) = self.gather(&mut gathered);
            let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
            match sendmsg(socket, &gathered[..count], &mut SendAncillaryBuffer::default(), flags) {
                Ok(sent) => {
                    self.advance(sent, pool, freed);
                    if sent < len {
                        return Ok(Sent::Full);
                    }
                }
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::AGAIN) => return Ok(Sent::Full),
                Err(errno) => return Err(errno),
            }
        }
        Ok(Sent::All)
    }

    fn gather<'a>(&'a self, slices: &mut [IoSlice<'a>; GATHER]) -> (usize, usize) {
        let (mut count, mut len, mut skip) = (0, 0, self.first_sent);
        let mut small = self.small_sent;
        for (slot, piece) in slices.iter_mut().zip(&self.pieces) {
            let bytes = match piece {
                Piece::Small(n) => {
                    let from = small;
                    // What has been sent of the first piece is counted in `small_sent` already.
                    small += n - skip;
                    &self.small[from..small]
                }
                Piece::Data(buf, n) => &buf[skip..*n],
            };
            skip = 0;
            len += bytes.len();
            *slot = IoSlice::new(bytes);
            count += 1;
        }
        (count, len)
    }

    fn advance(&mut self, mut sent: usize, pool: &mut Pool, freed: &mut usize) {
        self.bytes -= sent;
        while let Some(first) = self.pieces.front() {
            let left = first.len() - self.first_sent;
            let now = left.min(sent);
            if matches!(first, Piece::Small(_)) {
                self.small_sent += now;
            }
            sent -= now;
            if now < left {
                self.first_sent += now;
                break;
            }
            self.first_sent = 0;
            if let Some(Piece::Data(buf, _)) = self.pieces.pop_front() {
                *freed += buf.capacity();
                pool.give(buf);
            }
        }
        if self.pieces.is_empty() {
            self.small.clear();
            self.small_sent = 0;
            if self.small.capacity() > KEEP {
                self.small = Vec::new();
            }
        } else if self.small_sent >= COMPACT && self.small_sent * 2 >= self.small.len() {
            self.small.drain(..self.small_sent);
            self.small_sent = 0;
        }
    }

    /// Takes out what waits, as one run of bytes.
    pub(super) fn take(&mut self, pool: &mut Pool, freed: &mut usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.bytes);
        let (mut small, mut skip) = (self.small_sent, self.first_sent);
        for piece in &self.pieces {
            match piece {
                Piece::Small(n) => {
                    bytes.extend_from_slice(&self.small[small..small + n - skip]);
                    small += n - skip;
                }
                Piece::Data(buf, n) => bytes.extend_from_slice(&buf[skip..*n]),
            }
            skip = 0;
        }
        self.clear(pool, freed);
        bytes
    }

    /// Forgets everything.
    pub(super) fn clear(&mut self, pool: &mut Pool, freed: &mut usize) {
        for piece in self.pieces.drain(..) {
            if let Piece::Data(buf, _) = piece {
                *freed += buf.capacity();
                pool.give(buf);
            }
        }
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fd::AsFd;
    use std::io::Read;
    use std::os::unix::net::UnixStream;

    /// Replies of many sizes through a socket that fills up come out whole and in order, and every buffer goes home.
    #[test]
    fn what_is_put_comes_out_in_order() {
        let (server, mut client) = UnixStream::pair().expect("a socket pair");
        let (mut outbox, mut pool) = (Outbox::default(), Pool::default());
        let (mut expect, mut freed, mut taken) = (Vec::new(), 0, 0);
        for round in 0..600usize {
            let header = vec![round as u8; round % 40];
            outbox.put(|out| out.extend_from_slice(&header));
            expect.extend_from_slice(&header);
            if round % 3 == 0 {
                let len = 1 + round * 37 % 9000;
                let mut buf = pool.take(len);
                taken += buf.capacity();
                buf[..len].fill(round as u8 ^ 0x55);
                expect.extend_from_slice(&buf[..len]);
                outbox.put_data(buf, len);
            }
        }
        assert_eq!(outbox.bytes(), expect.len());
        let mut found = Vec::new();
        let mut full = 0;
        while outbox.send(server.as_fd(), &mut pool, &mut freed).expect("the peer is there") == Sent::Full {
            full += 1;
            let mut some = [0; 50_000];
            let n = client.read(&mut some).expect("sent before");
            found.extend_from_slice(&some[..n]);
        }
        // What the socket has not taken can be had at once.
        let rest = {
            let header = [9; 30];
            outbox.put(|out| out.extend_from_slice(&header));
            let mut buf = pool.take(5000);
            taken += buf.capacity();
            buf[..5000].fill(7);
            outbox.put_data(buf, 5000);
            expect.extend_from_slice(&header);
            expect.extend_from_slice(&[7; 5000]);
            outbox.take(&mut pool, &mut freed)
        };
        drop(server);
        client.read_to_end(&mut found).expect("the rest");
        found.extend_from_slice(&rest);
        assert!(full > 0, "the socket never filled up");
        assert!(found == expect, "bytes differ");
        assert_eq!((freed, pool.in_use(), outbox.bytes()), (taken, 0, 0));
        assert!(outbox.is_empty());
    }

    #[test]
    fn a_peer_that_has_gone_is_an_error() {
        let (server, client) = UnixStream::pair().expect("a socket pair");
        drop(client);
        let (mut outbox, mut pool, mut freed) = (Outbox::default(), Pool::default(), 0);
        outbox.put(|out| out.push(1));
        assert_eq!(outbox.send(server.as_fd(), &mut pool, &mut freed), Err(rustix::io::Errno::PIPE));
        outbox.put_data(pool.take(1), 1);
        outbox.clear(&mut pool, &mut freed);
        assert_eq!((outbox.is_empty(), pool.in_use(), freed), (true, 0, 4096));
    }
}
