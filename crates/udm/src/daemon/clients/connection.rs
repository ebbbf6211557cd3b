//! A client: what has come of its request, and what has not gone of its answer. Nothing here blocks.

use crate::daemon::conversation::{Conversation, MAX_UNTAKEN, Task};
use crate::daemon::socket::Peer;
use rustix::io::Errno as Os;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use std::io;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};
use udm_base::Errno;
use udm_control::second::{self, MAX_LINE};
use udm_control::wire::{self, WireAnswer};

/// How long a request may take from its first byte to its last.
const REQUEST: Duration = Duration::from_secs(30);
/// How long a client may take nothing of an answer.
const ANSWER: Duration = Duration::from_secs(60);
/// How long one that is to be refused may take to ask.
const REFUSAL: Duration = Duration::from_secs(5);
/// So much is received at a time, and of one client in a turn.
const PIECE: usize = 16 << 10;
const TURN: usize = 1 << 20;

/// A client.
pub(super) struct Connection {
    pub(super) stream: Arc<UnixStream>,
    pub(super) peer: Peer,
    pub(super) conversation: Conversation,
    /// What has come of the next request.
    input: Vec<u8>,
    /// So much of it has no newline.
    scanned: usize,
    /// The answer, and how much of it has gone.
    output: Vec<u8>,
    sent: usize,
    /// The answer is the last.
    ends: bool,
    /// A request is under way.
    pub(super) busy: bool,
    /// Since when it waits for what it waits for.
    since: Instant,
}

/// What came of looking.
pub(super) enum Collected {
    /// Not all of a request; there may be more to receive.
    Some,
    Whole(Task),
    HungUp,
    /// It does not keep to the protocol.
    Broken(io::Error),
}

impl Connection {
    pub(super) fn new(
        stream: UnixStream,
        peer: Peer,
        conversation: Conversation,
        input: Vec<u8>,
        now: Instant,
    ) -> Self {
        Self {
            stream: Arc::new(stream),
            peer,
            conversation,
            input,
            scanned: 0,
            output: Vec::new(),
            sent: 0,
            ends: false,
            busy: false,
            since: now,
        }
    }

    /// Receives what is there, up to the end of a request. Of `control.sock` nothing beyond it is received.
    pub(super) fn collect(&mut self, now: Instant) -> Collected {
        let mut left = TURN;
        loop {
            let lacks = match self.lacks() {
                Ok(lacks) => lacks,
                Err(error) => return Collected::Broken(error),
            };
            if lacks == 0 {
                match self.take() {
                    Ok(Some(task)) => return Collected::Whole(task),
                    Ok(None) => continue,
                    Err(error) => return Collected::Broken(error),
                }
            }
            if left == 0 {
                return Collected::Some;
            }
            let mut piece = [0; PIECE];
            let want = lacks.min(PIECE).min(left);
            match recv(&*self.stream, &mut piece[..want], RecvFlags::DONTWAIT) {
                Ok((_, 0)) => return Collected::HungUp,
                Ok((_, got)) => {
                    if self.input.is_empty() {
                        self.since = now;
                    }
                    self.input.extend_from_slice(&piece[..got]);
                    left -= got;
                }
                Err(Os::INTR) => {}
                Err(Os::AGAIN) => return Collected::Some,
                Err(_) => return Collected::HungUp,
            }
        }
    }

    /// How many bytes more are known to belong to what comes next; 0: it is there.
    fn lacks(&mut self) -> io::Result<usize> {
        match &self.conversation {
            Conversation::Control { cwd: None, .. } => wire::hello_lacks(&self.input),
            Conversation::Control { .. } => wire::request_lacks(&self.input),
            Conversation::Second { .. } => {
                let ended = self.input[self.scanned..].contains(&b'\n') || self.input.len() > MAX_LINE;
                if !ended {
                    self.scanned = self.input.len();
                }
                Ok(if ended { 0 } else { PIECE })
            }
        }
    }

    /// Takes what is there as a whole; `None` for a hello, which needs no answer.
    fn take(&mut self) -> io::Result<Option<Task>> {
        match &mut self.conversation {
            Conversation::Control { cwd: cwd @ None, .. } => {
                *cwd = Some(wire::read_hello(&mut &std::mem::take(&mut self.input)[..])?);
                Ok(None)
            }
            Conversation::Control { cwd: Some(cwd), .. } => {
                let request = wire::whole_request(std::mem::take(&mut self.input))?;
                Ok(Some(Task::Ioctl { cwd: cwd.clone(), request }))
            }
            Conversation::Second { greeted } => {
                let end = self.input.iter().position(|byte| *byte == b'\n').map_or(self.input.len(), |at| at + 1);
                let rest = self.input.split_off(end);
                self.scanned = 0;
                Ok(Some(Task::Line { line: std::mem::replace(&mut self.input, rest), greeted: *greeted }))
            }
        }
    }

    /// An answer is to go. `ends`: no other follows.
    pub(super) fn answer(&mut self, bytes: Vec<u8>, ends: bool, now: Instant) {
        (self.output, self.sent, self.ends, self.since) = (bytes, 0, ends, now);
    }

    /// The same with an error.
    pub(super) fn refuse(&mut self, errno: Errno, why: &str, now: Instant) {
        let bytes = match self.conversation {
            Conversation::Control { .. } => {
                encoded(&WireAnswer { errno: errno.get(), buf: Vec::new(), detail: why.to_owned() })
            }
            Conversation::Second { .. } => second::refusal(errno, why).into_bytes(),
        };
        self.answer(bytes, true, now);
    }

    /// Sends what can go now; false when the client has hung up, or has been told all.
    pub(super) fn send(&mut self, now: Instant) -> bool {
        while self.sent < self.output.len() {
            match send(&*self.stream, &self.output[self.sent..], SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Ok(sent) => (self.sent, self.since) = (self.sent + sent, now),
                Err(Os::INTR) => {}
                Err(Os::AGAIN) => return true,
                Err(_) => return false,
            }
        }
        if !self.output.is_empty() {
            // Idle from now on, without the memory of what it said.
            wire::wipe(&mut self.output);
            (self.output, self.sent, self.since) = (Vec::new(), 0, now);
        }
        !self.ends
    }

    /// Whether part of an answer has not gone.
    pub(super) fn has_output(&self) -> bool {
        self.sent < self.output.len()
    }

    /// Whether nothing is to be done for it.
    pub(super) fn is_idle(&self) -> bool {
        !self.busy && !self.has_output() && self.input.is_empty()
    }

    /// How long it has been waiting for what it waits for.
    pub(super) fn waits_for(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.since)
    }

    /// Whether it can become late.
    pub(super) fn may_be_late(&self) -> bool {
        !(self.busy || self.is_idle() && self.peer.is_allowed())
    }

    /// What it has taken too long for, for people; `None` while it has time.
    pub(super) fn is_late(&self, now: Instant) -> Option<String> {
        let (within, what) = if self.busy {
            return None;
        } else if self.has_output() {
            (ANSWER, "its answer was not taken")
        } else if !self.peer.is_allowed() {
            (REFUSAL, "it did not ask")
        } else if !self.input.is_empty() {
            (REQUEST, "the rest of the request did not come")
        } else {
            return None;
        };
        (self.waits_for(now) > within).then(|| format!("{what} within {} s", within.as_secs()))
    }

    /// Bytes that are held for it.
    pub(super) fn held(&self) -> usize {
        self.input.capacity() + self.output.capacity()
    }

    /// It goes on elsewhere: what has come of the next request, and what has not gone of the answer. `None` for one
    /// that is being hung up on.
    pub(super) fn into_parts(mut self) -> Option<(Arc<UnixStream>, Conversation, [Vec<u8>; 2])> {
        let output = self.output.split_off(self.sent);
        let goes_on = !self.ends && output.len() <= MAX_UNTAKEN;
        goes_on.then_some((self.stream, self.conversation, [self.input, output]))
    }
}

/// An answer as it travels.
pub(in crate::daemon) fn encoded(answer: &WireAnswer) -> Vec<u8> {
    let mut bytes = Vec::new();
    if let Err(error) = wire::write_answer(&mut bytes, answer) {
        let short = WireAnswer { errno: Errno::E2BIG.get(), buf: Vec::new(), detail: error.to_string() };
        bytes.clear();
        // Some words always fit.
        let _ = wire::write_answer(&mut bytes, &short);
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};

    fn connection(conversation: Conversation) -> (Connection, UnixStream, Instant) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let (peer, now) = (Peer::of(&ours).unwrap(), Instant::now());
        (Connection::new(ours, peer, conversation, Vec::new(), now), theirs, now)
    }

    fn whole(client: &mut Connection, now: Instant) -> Option<Vec<u8>> {
        match client.collect(now) {
            Collected::Whole(Task::Ioctl { cwd, request }) => Some([cwd, request.buf].concat()),
            Collected::Whole(Task::Line { line, .. }) => Some(line),
            _ => None,
        }
    }

    #[test]
    fn requests_come_in_pieces_and_together() {
        let (mut client, mut theirs, now) = connection(Conversation::CONTROL);
        let mut wire = Vec::new();
        wire::write_hello(&mut wire, b"/d/").unwrap();
        wire::write_request(&mut wire, 7, b"one").unwrap();
        for (at, byte) in wire.iter().enumerate() {
            theirs.write_all(&[*byte]).unwrap();
            let expect = (at == wire.len() - 1).then(|| b"/d/one".to_vec());
            assert_eq!(whole(&mut client, now), expect, "after {at}");
        }
        wire::write_request(&mut theirs, 7, b"two").unwrap();
        wire::write_request(&mut theirs, 7, b"").unwrap();
        assert_eq!(whole(&mut client, now), Some(b"/d/two".to_vec()));
        assert_eq!(whole(&mut client, now), Some(b"/d/".to_vec()));
        assert_eq!(whole(&mut client, now), None);
        drop(theirs);
        assert!(matches!(client.collect(now), Collected::HungUp));

        let (mut client, mut theirs, now) = connection(Conversation::SECOND);
        theirs.write_all(b"one\ntwo\nth").unwrap();
        assert_eq!(whole(&mut client, now), Some(b"one\n".to_vec()));
        assert_eq!(whole(&mut client, now), Some(b"two\n".to_vec()));
        assert_eq!(whole(&mut client, now), None);
        theirs.write_all(b"ree\n").unwrap();
        assert_eq!(whole(&mut client, now), Some(b"three\n".to_vec()));
    }

    #[test]
    fn who_does_not_take_an_answer_is_late_and_holds_nobody_up() {
        let (mut client, mut theirs, now) = connection(Conversation::CONTROL);
        let after = |seconds| now + Duration::from_secs(seconds);
        let long = vec![7; 8 << 20];
        client.answer(long.clone(), false, now);
        assert!(client.send(now) && client.has_output(), "it does not fit the socket");
        assert_eq!(client.is_late(after(60)), None);
        assert!(client.is_late(after(61)).unwrap().contains("was not taken within 60 s"));
        // Who takes some has time again.
        let mut some = vec![0; 64 << 10];
        theirs.read_exact(&mut some).unwrap();
        assert!(client.send(after(59)));
        assert_eq!(client.is_late(after(61)), None);
        let mut rest = vec![0; long.len() - some.len()];
        let reader = std::thread::spawn(move || theirs.read_exact(&mut rest).map(|()| theirs));
        while client.has_output() {
            assert!(client.send(after(59)));
        }
        let theirs = reader.join().unwrap().unwrap();
        assert!(client.is_idle() && client.held() == 0);
        assert_eq!(client.is_late(after(1_000_000)), None, "one that is idle may be so");
        wire::write_hello(&mut &theirs, b"/").unwrap();
        (&theirs).write_all(&[1, 2, 3]).unwrap();
        assert_eq!(whole(&mut client, after(100)), None);
        assert_eq!(client.is_late(after(130)), None);
        assert!(client.is_late(after(131)).unwrap().contains("the rest of the request did not come"));
    }
}
