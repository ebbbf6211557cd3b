//! An NBD client that can be misused: the NBD project's `doc/proto.md`, fixed newstyle, `NBD_OPT_GO`, simple replies.

use super::{Client, Request, What};
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;

const GREETING: &[u8; 16] = b"NBDMAGICIHAVEOPT";
const OPTION: &[u8; 8] = b"IHAVEOPT";
const OPTION_GO: u32 = 7;
const REPLY_ACK: u32 = 1;
const REPLY_INFO: u32 = 3;
const REPLY_ERROR: u32 = 1 << 31;
const REQUEST: u32 = 0x2560_9513;
const SIMPLE_REPLY: u32 = 0x6744_6698;
const FLAG_FUA: u16 = 1;
const EXPORT_TRIM: u16 = 1 << 5;

/// Either kind of socket.
pub trait Stream: Read + Write + Send {}
impl<T: Read + Write + Send> Stream for T {}

/// A connection that has an export open.
pub struct Nbd {
    stream: Box<dyn Stream>,
    /// What the export can do, as the server says.
    flags: u16,
}

/// A connection to the socket at `path`, with nothing said.
pub fn dial(path: &Path) -> io::Result<UnixStream> {
    UnixStream::connect(path)
}

fn broken(text: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text)
}

impl Nbd {
    /// Opens an export over a unix socket.
    pub fn unix(path: &Path, export: &str) -> io::Result<Self> {
        Self::open(Box::new(dial(path)?), export)
    }

    /// Opens an export over TCP.
    pub fn tcp(address: SocketAddr, export: &str) -> io::Result<Self> {
        Self::open(Box::new(TcpStream::connect(address)?), export)
    }

    /// Opens an export on a connection.
    ///
    /// # Errors
    /// `NotFound` when the server refuses it, with its reason.
    pub fn open(mut stream: Box<dyn Stream>, export: &str) -> io::Result<Self> {
        let mut greeting = [0; 18];
        stream.read_exact(&mut greeting)?;
        if greeting[..16] != GREETING[..] {
            return Err(broken(format!("not an NBD greeting: {greeting:?}")));
        }
        let mut hello = 3u32.to_be_bytes().to_vec();
        hello.extend(OPTION);
        hello.extend(OPTION_GO.to_be_bytes());
        hello.extend((export.len() as u32 + 6).to_be_bytes());
        hello.extend((export.len() as u32).to_be_bytes());
        hello.extend(export.as_bytes());
        hello.extend([0; 2]);
        stream.write_all(&hello)?;
        let mut flags = 0;
        loop {
            let mut head = [0; 20];
            stream.read_exact(&mut head)?;
            let [kind, length] = [12, 16].map(|at| word(&head, at));
            if length > 1 << 16 {
                return Err(broken(format!("an option reply of {length} bytes")));
            }
            let mut data = vec![0; length as usize];
            stream.read_exact(&mut data)?;
            if kind == REPLY_ACK {
                return Ok(Self { stream, flags });
            }
            if kind == REPLY_INFO && data.len() == 12 && data[..2] == [0, 0] {
                flags = u16::from_be_bytes([data[10], data[11]]);
            }
            if kind & REPLY_ERROR != 0 {
                let reason = String::from_utf8_lossy(&data).into_owned();
                return Err(io::Error::new(io::ErrorKind::NotFound, format!("{export}: {reason}")));
            }
        }
    }

    /// Sends a request, whatever becomes of it.
    pub fn send(&mut self, cookie: u64, request: &Request) -> io::Result<()> {
        let (flags, command) = match request.what {
            What::Read => (0, 0u16),
            What::Write { fua } => (if fua { FLAG_FUA } else { 0 }, 1),
            What::Flush => (0, 3),
            What::Trim => (0, 4),
            What::Zero => (0, 6),
        };
        let mut bytes = Vec::with_capacity(28 + request.data.len());
        bytes.extend(REQUEST.to_be_bytes());
        bytes.extend(flags.to_be_bytes());
        bytes.extend(command.to_be_bytes());
        bytes.extend(cookie.to_be_bytes());
        bytes.extend(request.offset.to_be_bytes());
        bytes.extend(request.length.to_be_bytes());
        if matches!(request.what, What::Write { .. }) {
            bytes.extend(&request.data);
        }
        self.stream.write_all(&bytes)
    }

    /// Sends bytes as they are.
    pub fn say(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes)
    }

    /// Receives the next answer into the request that it belongs to.
    pub fn receive(&mut self, batch: &mut [Request]) -> io::Result<()> {
        let mut head = [0; 16];
        self.stream.read_exact(&mut head)?;
        let (magic, errno) = (word(&head, 0), word(&head, 4));
        if magic != SIMPLE_REPLY {
            return Err(broken(format!("{magic:#x} is not the start of a reply")));
        }
        let cookie = u64::from(word(&head, 8)) << 32 | u64::from(word(&head, 12));
        let request = usize::try_from(cookie).ok().and_then(|at| batch.get_mut(at));
        let Some(request) = request.filter(|request| request.answer.is_none()) else {
            return Err(broken(format!("a reply to request {cookie}, which is not out")));
        };
        if errno == 0 && request.what == What::Read {
            request.data.resize(request.length as usize, 0);
            self.stream.read_exact(&mut request.data)?;
        }
        request.answer = Some(if errno == 0 { Ok(()) } else { Err(errno as i32) });
        Ok(())
    }
}

fn word(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |bytes| u32::from_be_bytes(*bytes))
}

impl Client for Nbd {
    fn trims(&self) -> bool {
        self.flags & EXPORT_TRIM != 0
    }

    fn execute(&mut self, batch: &mut [Request], moved: &mut dyn FnMut()) -> io::Result<()> {
        for (cookie, request) in (0..).zip(batch.iter()) {
            self.send(cookie, request)?;
        }
        for _ in 0..batch.len() {
            self.receive(batch)?;
            moved();
        }
        Ok(())
    }
}
