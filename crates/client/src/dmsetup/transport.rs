//! The way to the daemon.

use std::io;
use std::os::unix::net::UnixStream;
use udm_base::{DevT, Errno};
use udm_control::wire;

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

/// Carries device-mapper ioctls, as `ioctl(2)` on `/dev/mapper/control` does.
pub trait DmTransport {
    /// Run the ioctl `cmd` (the full number) on the `struct dm_ioctl` in `buf`, and put the answer
    /// in its place. May block: until a table is loaded, a device suspended, an event seen.
    ///
    /// # Errors
    /// The ioctl's; `buf` is then as it was, or as the daemon left it.
    fn ioctl(&mut self, cmd: u32, buf: &mut Vec<u8>) -> Result<(), IoctlError>;

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

/// A [`DmTransport`] over the daemon's `control.sock`.
///
/// `connect` opens the socket and, where nobody answers, may start a daemon first. It is called
/// for the first ioctl, and again when a daemon has gone between two.
pub struct SocketTransport<C> {
    connect: C,
    cwd: Vec<u8>,
    stream: Option<UnixStream>,
}

impl<C: FnMut() -> io::Result<UnixStream>> SocketTransport<C> {
    /// A transport that opens no connection yet. `cwd` is what paths in tables are relative to.
    pub fn new(cwd: impl Into<Vec<u8>>, connect: C) -> Self {
        Self { connect, cwd: cwd.into(), stream: None }
    }

    fn open(&mut self) -> Result<UnixStream, IoctlError> {
        let failed = |e: io::Error| IoctlError::new(Errno::of(&e), format!("no connection to the daemon: {e}"));
        let mut stream = (self.connect)().map_err(failed)?;
        wire::write_hello(&mut stream, &self.cwd).map_err(failed)?;
        Ok(stream)
    }
}

impl<C: FnMut() -> io::Result<UnixStream>> DmTransport for SocketTransport<C> {
    fn ioctl(&mut self, cmd: u32, buf: &mut Vec<u8>) -> Result<(), IoctlError> {
        let lost = |e: io::Error| {
            IoctlError::new(
                Errno::EIO,
                format!("the connection to the daemon broke: {e}; whether it did the work is unknown"),
            )
        };
        // A request that a connection from before cannot take has reached nobody: it may go again.
        let sent =
            self.stream.take().and_then(|mut stream| wire::write_request(&mut stream, cmd, buf).ok().map(|()| stream));
        let mut stream = match sent {
            Some(stream) => stream,
            None => {
                let mut stream = self.open()?;
                wire::write_request(&mut stream, cmd, buf).map_err(lost)?;
                stream
            }
        };
        let answer = wire::read_answer(&mut stream).map_err(lost)?;
        self.stream = Some(stream);
        if !answer.buf.is_empty() {
            *buf = answer.buf;
        }
        match answer.errno {
            0 => Ok(()),
            errno => Err(IoctlError::new(Errno::new(errno), answer.detail)),
        }
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
}
