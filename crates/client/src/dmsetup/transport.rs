//! The way to the daemon.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io;
use std::os::unix::net::UnixStream;
use std::time::Duration;
use udm_base::{DevT, Errno};
use udm_control::wire::{self, WireAnswer};

/// An ioctl failed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{errno}")]
pub struct IoctlError {
    /// The error number.
    pub errno: Errno,
    /// What more there is to say: which argument of which line, what to do. May have several
    /// lines, may be empty.
    pub detail: String,
}

impl IoctlError {
    /// An error number with words.
    pub fn new(errno: Errno, detail: impl Into<String>) -> Self {
        Self { errno, detail: detail.into() }
    }
}

/// What an answer comes to: its buffer in the place of the request's, and what there is to say to an ioctl that went
/// well.
pub(super) fn outcome(answer: WireAnswer, buf: &mut Vec<u8>) -> Result<String, IoctlError> {
    if !answer.buf.is_empty() {
        *buf = answer.buf;
    }
    match answer.errno {
        0 => Ok(answer.detail),
        errno => Err(IoctlError::new(Errno::new(errno), answer.detail)),
    }
}

/// Carries device-mapper ioctls, as `ioctl(2)` on `/dev/mapper/control` does.
pub trait DmTransport {
    /// Run the ioctl `cmd` (the full number) on the `struct dm_ioctl` in `buf`, and put the answer
    /// in its place. May block: until a table is loaded, a device suspended, an event seen.
    ///
    /// # Errors
    /// The ioctl's; `buf` is then as it was, or as the daemon left it.
    fn ioctl(&mut self, cmd: u32, buf: &mut Vec<u8>) -> Result<(), IoctlError>;

    /// What the daemon had to say to the last ioctl, which went well: what the kernel would only log. Empty where there
    /// is nothing.
    fn said(&mut self) -> String {
        String::new()
    }

    /// What the ioctl has no field for, as an object: `read_only`, `io_poll`, `remapped`, `cloned`,
    /// `zero_skipped_bios`, `zero_skipped_bytes`, `polls`, `read_ahead` (in sectors). `None` where
    /// there is no second protocol or no such device. May block.
    fn device_stats(&mut self, name: &str) -> Option<serde_json::Value> {
        let _ = name;
        None
    }

    /// What is behind the numbers that `deps` gives to files and the like, which the system does
    /// not know: their names in tables. May block.
    fn host_devices(&mut self) -> Vec<(DevT, String)> {
        Vec::new()
    }

    /// A device was made, with its table. May block.
    ///
    /// # Errors
    /// What that was to lead to has failed, for people. The device is there.
    fn created(&mut self, name: &str) -> Result<(), String> {
        let _ = name;
        Ok(())
    }

    /// Set how many sectors a device reads ahead; `info` shows it, and nothing else need come of
    /// it. Where there is no second protocol, nothing is done. May block.
    fn set_read_ahead(&mut self, name: &str, sectors: u32) {
        let _ = (name, sectors);
    }
}

/// How often a request is sent that daemons went away from: one that is killed takes those with it that have only just
/// connected, and so may the next.
const TRIES: usize = 8;

/// A [`DmTransport`] over the daemon's `control.sock`.
///
/// `connect` opens the socket and, where nobody answers, may start a daemon first. It is called
/// for the first ioctl, and again when a daemon has gone without having read a request.
pub struct SocketTransport<C> {
    connect: C,
    cwd: Vec<u8>,
    stream: Option<UnixStream>,
    waiting: Option<Waiting>,
    said: String,
}

/// What is called, and how often, while an answer does not come.
type Waiting = (Duration, Box<dyn FnMut()>);

impl<C: FnMut() -> io::Result<UnixStream>> SocketTransport<C> {
    /// A transport that opens no connection yet. `cwd` is what paths in tables are relative to.
    pub fn new(cwd: impl Into<Vec<u8>>, connect: C) -> Self {
        Self { connect, cwd: cwd.into(), stream: None, waiting: None, said: String::new() }
    }

    /// Calls `look` again and again, each time after so long, while an answer does not come.
    #[must_use]
    pub fn while_waiting(mut self, every: Duration, look: impl FnMut() + 'static) -> Self {
        self.waiting = Some((every, Box::new(look)));
        self
    }

    /// Returns when there is something to read, or at once if nobody wants to know that it takes long.
    fn wait(&mut self, stream: &UnixStream) {
        let Some((every, look)) = &mut self.waiting else { return };
        let every = Timespec { tv_sec: every.as_secs() as i64, tv_nsec: every.subsec_nanos().into() };
        loop {
            match poll(&mut [PollFd::new(stream, PollFlags::IN)], Some(&every)) {
                Ok(0) => look(),
                Err(rustix::io::Errno::INTR) => {}
                Ok(_) | Err(_) => return,
            }
        }
    }

    /// One request on the connection that there is, or on a new one.
    fn ask(&mut self, cmd: u32, buf: &[u8]) -> Result<(UnixStream, wire::WireAnswer), Broken> {
        let (mut stream, greeted) = match self.stream.take() {
            Some(stream) => (stream, true),
            None => ((self.connect)().map_err(Broken::NoWay)?, false),
        };
        let hello = if greeted { Ok(()) } else { wire::write_hello(&mut stream, &self.cwd) };
        let sent = hello.and_then(|()| wire::write_request(&mut stream, cmd, buf));
        if let Err(error) = sent {
            // A daemon that hung up before it had this may have said why, as one does that is being stopped.
            let told = if is_hung_up(&error) { wire::read_answer(&mut stream).ok() } else { None };
            return told.filter(|answer| answer.errno != 0).map(|answer| (stream, answer)).ok_or(Broken::unsent(error));
        }
        self.wait(&stream);
        match wire::read_answer(&mut stream) {
            Ok(answer) => Ok((stream, answer)),
            Err(e) if wire::is_unread(&e) => Err(Broken::Unread(e)),
            Err(e) => Err(Broken::Lost(e)),
        }
    }
}

/// Whether nobody reads at the other end any more: then what is to be read there comes at once.
fn is_hung_up(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset)
}

/// Why there is no answer.
enum Broken {
    /// There is no connection.
    NoWay(io::Error),
    /// The daemon has gone, and the request was not read as a whole by anybody.
    Unread(io::Error),
    /// Whether the daemon did the work is unknown.
    Lost(io::Error),
}

impl Broken {
    /// What could not be sent as a whole.
    fn unsent(error: io::Error) -> Self {
        match error.kind() {
            // It never can be.
            io::ErrorKind::InvalidInput => Self::NoWay(error),
            _ => Self::Unread(error),
        }
    }
}

impl<C: FnMut() -> io::Result<UnixStream>> DmTransport for SocketTransport<C> {
    fn ioctl(&mut self, cmd: u32, buf: &mut Vec<u8>) -> Result<(), IoctlError> {
        let mut tries = TRIES;
        let (stream, answer) = loop {
            tries -= 1;
            match self.ask(cmd, buf) {
                Ok(both) => break both,
                // It has reached nobody: it may go again.
                Err(Broken::Unread(_)) if tries > 0 => {}
                Err(Broken::Unread(e)) => {
                    return Err(IoctlError::new(Errno::EIO, format!("no daemon takes the request: {e}")));
                }
                Err(Broken::Lost(e)) => {
                    return Err(IoctlError::new(
                        Errno::EIO,
                        format!("the connection to the daemon broke: {e}; whether it did the work is unknown"),
                    ));
                }
                Err(Broken::NoWay(e)) => {
                    return Err(IoctlError::new(Errno::of(&e), format!("no connection to the daemon: {e}")));
                }
            }
        };
        self.stream = Some(stream);
        self.said = outcome(answer, buf)?;
        Ok(())
    }

    fn said(&mut self) -> String {
        std::mem::take(&mut self.said)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use udm_control::codec::{Command, Reply, Request, RequestBuilder, Response};

    /// A daemon that answers `count` requests and hangs up.
    fn daemon(mut stream: UnixStream, count: usize) {
        assert_eq!(wire::read_hello(&mut stream).unwrap(), b"/home");
        for _ in 0..count {
            let Some(request) = wire::read_request(&mut stream).unwrap() else { return };
            let parsed = Request::parse(request.ioctl_cmd, &request.buf).unwrap();
            let answer = if parsed.name() == b"gone" {
                wire::WireAnswer { errno: 6, buf: vec![], detail: "no such device".into() }
            } else {
                let mut reply = Reply::to(&parsed);
                reply.header_mut().event_nr = 9;
                wire::WireAnswer { errno: 0, buf: reply.finish(), detail: String::new() }
            };
            wire::write_answer(&mut stream, &answer).unwrap();
        }
    }

    #[test]
    fn over_a_socket() {
        let mut connections = 0;
        let mut threads = Vec::new();
        let mut transport = SocketTransport::new("/home", || {
            connections += 1;
            let (ours, theirs) = UnixStream::pair()?;
            threads.push(std::thread::spawn(move || daemon(theirs, 2)));
            Ok(ours)
        });
        let mut ask = |name: &[u8]| {
            let mut buf = RequestBuilder::new(Command::DevStatus).name(name).build().unwrap();
            transport.ioctl(Command::DevStatus.ioctl_number(), &mut buf)?;
            Ok::<u32, IoctlError>(Response::parse(&buf).unwrap().header().event_nr)
        };
        assert_eq!(ask(b"a"), Ok(9));
        assert_eq!(ask(b"gone"), Err(IoctlError::new(Errno::ENXIO, "no such device")));
        drop(transport);
        for thread in threads {
            thread.join().unwrap();
        }
        assert_eq!(connections, 1);
    }

    #[test]
    fn who_waits_is_called_until_the_answer_comes() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let (look, looked) = std::sync::mpsc::channel();
        let served = std::thread::spawn(move || {
            let mut stream = &theirs;
            wire::read_hello(&mut stream).unwrap();
            wire::read_request(&mut stream).unwrap().unwrap();
            (0..3).for_each(|_| looked.recv().unwrap());
            wire::write_answer(&mut stream, &wire::WireAnswer::default()).unwrap();
        });
        let mut streams = vec![ours];
        let transport = SocketTransport::new("/home", || Ok(streams.pop().expect("it is asked once")));
        let mut transport = transport.while_waiting(Duration::from_millis(1), move || {
            // One more may come before the answer.
            let _ = look.send(());
        });
        let mut buf = RequestBuilder::new(Command::DevStatus).name(b"a").build().unwrap();
        transport.ioctl(Command::DevStatus.ioctl_number(), &mut buf).unwrap();
        served.join().unwrap();
    }

    #[test]
    fn a_daemon_that_went_between_two_requests() {
        let (first, theirs) = UnixStream::pair().unwrap();
        let served = std::thread::spawn(move || daemon(theirs, 1));
        let (second, theirs) = UnixStream::pair().unwrap();
        let again = std::thread::spawn(move || daemon(theirs, 1));
        let mut streams = vec![second, first];
        let mut transport = SocketTransport::new("/home", || streams.pop().ok_or(io::ErrorKind::NotFound.into()));
        let mut buf = RequestBuilder::new(Command::DevStatus).name(b"a").build().unwrap();
        let request = buf.clone();
        transport.ioctl(Command::DevStatus.ioctl_number(), &mut buf).unwrap();
        served.join().unwrap();
        let mut buf = request.clone();
        transport.ioctl(Command::DevStatus.ioctl_number(), &mut buf).unwrap();
        again.join().unwrap();
        let mut buf = request;
        let error = transport.ioctl(Command::DevStatus.ioctl_number(), &mut buf).unwrap_err();
        assert!(error.detail.contains("no connection to the daemon"), "{error:?}");
    }

    /// One that is being stopped answers whoever is there, also who has not asked yet; they start no other.
    #[test]
    fn a_daemon_that_says_that_it_stops() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let answer = wire::WireAnswer { errno: 108, buf: vec![], detail: "it is being stopped".into() };
        wire::write_answer(&mut theirs, &answer).unwrap();
        drop(theirs);
        let mut streams = vec![ours];
        let mut transport = SocketTransport::new("/home", || Ok(streams.pop().expect("it is asked once")));
        let mut buf = RequestBuilder::new(Command::DevStatus).name(b"a").build().unwrap();
        let error = transport.ioctl(Command::DevStatus.ioctl_number(), &mut buf).unwrap_err();
        assert_eq!(error, IoctlError::new(Errno::ESHUTDOWN, "it is being stopped"));
    }

    /// What a daemon that is killed leaves: connections that it had not accepted, or had not read from.
    #[test]
    fn a_daemon_that_went_before_it_read() {
        let unread = || {
            let (ours, theirs) = UnixStream::pair().unwrap();
            let gone = std::thread::spawn(move || {
                // As soon as the request is there: its last byte comes after the hello and its head.
                let mut hello = vec![0; 16 + "/home".len()];
                std::io::Read::read_exact(&mut &theirs, &mut hello).unwrap();
                let mut first = [0];
                rustix::net::recv(&theirs, &mut first, rustix::net::RecvFlags::PEEK).unwrap();
            });
            (ours, gone)
        };
        let ((first, gone), (second, gone_too)) = (unread(), unread());
        let (third, theirs) = UnixStream::pair().unwrap();
        let served = std::thread::spawn(move || daemon(theirs, 1));
        let mut streams = vec![third, second, first];
        let mut transport = SocketTransport::new("/home", || streams.pop().ok_or(io::ErrorKind::NotFound.into()));
        let mut buf = RequestBuilder::new(Command::DevStatus).name(b"a").build().unwrap();
        transport.ioctl(Command::DevStatus.ioctl_number(), &mut buf).unwrap();
        [gone, gone_too, served].into_iter().for_each(|thread| thread.join().unwrap());
    }

    /// One that has read the request may have done the work.
    #[test]
    fn a_daemon_that_went_after_it_read() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let read = std::thread::spawn(move || {
            wire::read_hello(&mut &theirs).unwrap();
            wire::read_request(&mut &theirs).unwrap().unwrap();
        });
        let mut streams = vec![ours];
        let mut transport = SocketTransport::new("/home", || Ok(streams.pop().expect("it is asked once")));
        let mut buf = RequestBuilder::new(Command::DevStatus).name(b"a").build().unwrap();
        let error = transport.ioctl(Command::DevStatus.ioctl_number(), &mut buf).unwrap_err();
        assert!(error.detail.contains("is unknown"), "{error:?}");
        read.join().unwrap();
    }

    #[test]
    fn daemons_that_always_go() {
        let mut count = 0;
        let mut transport = SocketTransport::new("/home", || {
            count += 1;
            UnixStream::pair().map(|(ours, _)| ours)
        });
        let mut buf = RequestBuilder::new(Command::DevStatus).name(b"a").build().unwrap();
        let error = transport.ioctl(Command::DevStatus.ioctl_number(), &mut buf).unwrap_err();
        assert!(error.detail.contains("no daemon takes the request"), "{error:?}");
        drop(transport);
        assert_eq!(count, TRIES);
    }
}
