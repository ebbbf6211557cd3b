//! How ioctls travel over `control.sock`.
//!
//! Integers are in the machine's own byte order: both ends are on one machine, and the
//! `struct dm_ioctl` within is in that order too.
//!
//! 1. The client connects; the daemon asks the kernel who it is (`SO_PEERCRED`).
//! 2. The client sends a hello: [`HelloHead`], then its working directory, since paths in a table
//!    are relative to the caller's.
//! 3. Any number of times, the client sends [`RequestHead`] and the `dm_ioctl` buffer, and the
//!    daemon answers with [`AnswerHead`], the buffer (empty where it failed before it had one),
//!    and a text that says more than the error number can: UTF-8, possibly several lines.
//!
//! A client sends nothing more before it has its answer, and the daemon reads no further than the request's end. So a
//! connection that is *reset* was given up with the request unread: nobody has begun with it, and it may go to another
//! daemon ([`is_unread`]).
//!
//! Lengths are checked before anything is allocated for them, and buffers grow only as bytes
//! arrive. The functions here block as their stream does; an event loop collects what [`hello_lacks`] and
//! [`request_lacks`] ask for, and reads from what it has.

use std::io::{self, Read, Write};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

/// The hello's first four bytes.
pub const MAGIC: [u8; 4] = *b"UDMC";
/// The version of this framing.
pub const VERSION: u16 = 1;
/// The longest `dm_ioctl` buffer, and the longest text, in bytes.
pub const MAX_MESSAGE: usize = 16 << 20;
/// The longest working directory, in bytes (`PATH_MAX`).
pub const MAX_CWD: usize = 4096;

/// What the hello begins with.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct HelloHead {
    /// [`MAGIC`].
    pub magic: [u8; 4],
    /// [`VERSION`].
    pub version: u16,
    /// Zero.
    pub flags: u16,
    /// Bytes of the working directory that follows.
    pub cwd_len: u32,
    /// Zero.
    pub reserved: u32,
}

impl HelloHead {
    /// Check the head.
    ///
    /// # Errors
    /// `InvalidData`: not a client of udm's, another version, or a directory that is too long.
    pub fn check(&self) -> io::Result<()> {
        if self.magic != MAGIC {
            return Err(invalid(format!("the hello begins with {:02x?}: expected {:02x?}", self.magic, MAGIC)));
        }
        if self.version != VERSION {
            return Err(invalid(format!("the client speaks version {} of the protocol, udm {VERSION}", self.version)));
        }
        within("working directory", self.cwd_len, MAX_CWD)
    }
}

/// What precedes a request's buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct RequestHead {
    /// The full ioctl number.
    pub ioctl_cmd: u32,
    /// Bytes of the buffer.
    pub len: u32,
}

impl RequestHead {
    /// Check the length.
    ///
    /// # Errors
    /// `InvalidData`: more than [`MAX_MESSAGE`].
    pub fn check(&self) -> io::Result<()> {
        within("request", self.len, MAX_MESSAGE)
    }
}

/// What precedes an answer's buffer and text.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct AnswerHead {
    /// Zero, or the error number, positive.
    pub errno: i32,
    /// Bytes of the buffer.
    pub len: u32,
    /// Bytes of the text.
    pub detail_len: u32,
    /// Zero.
    pub reserved: u32,
}

impl AnswerHead {
    /// Check the lengths.
    ///
    /// # Errors
    /// `InvalidData`: one is more than [`MAX_MESSAGE`].
    pub fn check(&self) -> io::Result<()> {
        within("answer", self.len, MAX_MESSAGE)?;
        within("answer's text", self.detail_len, MAX_MESSAGE)
    }
}

const _: () = assert!(size_of::<HelloHead>() == 16 && size_of::<RequestHead>() == 8 && size_of::<AnswerHead>() == 16);

/// A request as received.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WireRequest {
    /// The full ioctl number.
    pub ioctl_cmd: u32,
    /// The `dm_ioctl` buffer.
    pub buf: Vec<u8>,
}

/// An answer to a request.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct WireAnswer {
    /// Zero, or the error number, positive.
    pub errno: i32,
    /// The `dm_ioctl` buffer; may be empty when `errno` is not zero.
    pub buf: Vec<u8>,
    /// What went wrong and what to do, in words; may be empty.
    pub detail: String,
}

/// Send the hello.
///
/// # Errors
/// The stream's, and `InvalidInput` for a directory that is too long.
pub fn write_hello(stream: &mut impl Write, cwd: &[u8]) -> io::Result<()> {
    let cwd_len = length("working directory", cwd.len(), MAX_CWD)?;
    let head = HelloHead { magic: MAGIC, version: VERSION, flags: 0, cwd_len, reserved: 0 };
    send(stream, &[head.as_bytes(), cwd])
}

/// Receive the hello: the client's working directory.
///
/// # Errors
/// The stream's, `UnexpectedEof`, and those of [`HelloHead::check`].
pub fn read_hello(stream: &mut impl Read) -> io::Result<Vec<u8>> {
    let head: HelloHead = head(stream)?.ok_or(io::ErrorKind::UnexpectedEof)?;
    head.check()?;
    body(stream, head.cwd_len)
}

/// How many bytes a hello still lacks, for who collects them as they come; 0: it is whole. At first only its head's are
/// known.
///
/// # Errors
/// Those of [`HelloHead::check`].
pub fn hello_lacks(bytes: &[u8]) -> io::Result<usize> {
    let Some(head) = head_of::<HelloHead>(bytes) else { return Ok(size_of::<HelloHead>() - bytes.len()) };
    head.check()?;
    Ok((size_of::<HelloHead>() + head.cwd_len as usize).saturating_sub(bytes.len()))
}

/// The same of a request.
///
/// # Errors
/// Those of [`RequestHead::check`].
pub fn request_lacks(bytes: &[u8]) -> io::Result<usize> {
    let Some(head) = head_of::<RequestHead>(bytes) else { return Ok(size_of::<RequestHead>() - bytes.len()) };
    head.check()?;
    Ok((size_of::<RequestHead>() + head.len as usize).saturating_sub(bytes.len()))
}

/// A request that has come as a whole.
///
/// # Errors
/// `UnexpectedEof` when it has not, and those of [`RequestHead::check`].
pub fn whole_request(mut bytes: Vec<u8>) -> io::Result<WireRequest> {
    let head = head_of::<RequestHead>(&bytes).ok_or(io::ErrorKind::UnexpectedEof)?;
    if request_lacks(&bytes)? > 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    // In place: the fewer copies there are of it, the fewer are left.
    bytes.drain(..size_of::<RequestHead>());
    Ok(WireRequest { ioctl_cmd: head.ioctl_cmd, buf: bytes })
}

/// Zeroes what may have been a secret, as the kernel does with DM_SECURE_DATA.
pub fn wipe(bytes: &mut [u8]) {
    bytes.fill(0);
    // As if it were read, or the compiler could see that nobody does.
    std::hint::black_box(bytes);
}

fn head_of<T: FromBytes>(bytes: &[u8]) -> Option<T> {
    T::read_from_prefix(bytes).ok().map(|(head, _)| head)
}

/// Send a request.
///
/// # Errors
/// The stream's, and `InvalidInput` for a buffer that is too long.
pub fn write_request(stream: &mut impl Write, ioctl_cmd: u32, buf: &[u8]) -> io::Result<()> {
    let head = RequestHead { ioctl_cmd, len: length("request", buf.len(), MAX_MESSAGE)? };
    send(stream, &[head.as_bytes(), buf])
}

/// Receive a request; `None` when the client has hung up between two.
///
/// # Errors
/// The stream's, `UnexpectedEof` within a request, and those of [`RequestHead::check`].
pub fn read_request(stream: &mut impl Read) -> io::Result<Option<WireRequest>> {
    let Some(head) = head::<RequestHead>(stream)? else { return Ok(None) };
    head.check()?;
    Ok(Some(WireRequest { ioctl_cmd: head.ioctl_cmd, buf: body(stream, head.len)? }))
}

/// Send an answer.
///
/// # Errors
/// The stream's, and `InvalidInput` for a buffer or a text that is too long.
pub fn write_answer(stream: &mut impl Write, answer: &WireAnswer) -> io::Result<()> {
    let len = length("answer", answer.buf.len(), MAX_MESSAGE)?;
    let detail_len = length("answer's text", answer.detail.len(), MAX_MESSAGE)?;
    let head = AnswerHead { errno: answer.errno, len, detail_len, reserved: 0 };
    send(stream, &[head.as_bytes(), &answer.buf, answer.detail.as_bytes()])
}

/// Receive an answer.
///
/// # Errors
/// The stream's, `UnexpectedEof` when the daemon has hung up, and those of [`AnswerHead::check`].
pub fn read_answer(stream: &mut impl Read) -> io::Result<WireAnswer> {
    let head: AnswerHead = head(stream)?.ok_or(io::ErrorKind::UnexpectedEof)?;
    head.check()?;
    let buf = body(stream, head.len)?;
    let detail = String::from_utf8_lossy(&body(stream, head.detail_len)?).into_owned();
    Ok(WireAnswer { errno: head.errno, buf, detail })
}

/// Whether the error of who waits for an answer says that the daemon's end was closed before all that was sent had been
/// read: the daemon was killed with the connection still unaccepted, or before it had the whole request. One that has
/// read everything leaves the end of the stream instead (`net/unix/af_unix.c`, `unix_release_sock`, Linux 6.12).
pub fn is_unread(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::ConnectionReset
}

/// A head; `None` when the stream ends before its first byte.
fn head<T: FromBytes + IntoBytes + FromZeros>(stream: &mut impl Read) -> io::Result<Option<T>> {
    let mut head = T::new_zeroed();
    let bytes = head.as_mut_bytes();
    let first = loop {
        match stream.read(&mut bytes[..1]) {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            other => break other?,
        }
    };
    if first == 0 {
        return Ok(None);
    }
    stream.read_exact(&mut bytes[1..])?;
    Ok(Some(head))
}

fn body(stream: &mut impl Read, len: u32) -> io::Result<Vec<u8>> {
    let mut body = Vec::new();
    // Grows as bytes arrive: a length alone costs nothing.
    if stream.by_ref().take(len.into()).read_to_end(&mut body)? < len as usize {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(body)
}

/// One write, so that a small message is one packet and one wake-up.
fn send(stream: &mut impl Write, parts: &[&[u8]]) -> io::Result<()> {
    stream.write_all(&parts.concat())?;
    stream.flush()
}

fn within(what: &str, len: u32, max: usize) -> io::Result<()> {
    if len as usize > max { Err(invalid(format!("the {what} claims {len} bytes: at most {max}"))) } else { Ok(()) }
}

fn length(what: &str, len: usize, max: usize) -> io::Result<u32> {
    if len > max {
        let message = format!("the {what} has {len} bytes: at most {max}");
        return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
    }
    Ok(len as u32)
}

fn invalid(message: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trip() {
        let mut wire = Vec::new();
        write_hello(&mut wire, b"/home").unwrap();
        write_request(&mut wire, 7, b"abc").unwrap();
        write_request(&mut wire, 8, b"").unwrap();
        let mut stream = &wire[..];
        assert_eq!(read_hello(&mut stream).unwrap(), b"/home");
        assert_eq!(read_request(&mut stream).unwrap(), Some(WireRequest { ioctl_cmd: 7, buf: b"abc".into() }));
        assert_eq!(read_request(&mut stream).unwrap(), Some(WireRequest { ioctl_cmd: 8, buf: vec![] }));
        assert_eq!(read_request(&mut stream).unwrap(), None);

        let answer = WireAnswer { errno: 6, buf: b"xyz".into(), detail: "no such device\n  ^".into() };
        let mut wire = Vec::new();
        write_answer(&mut wire, &answer).unwrap();
        assert_eq!(read_answer(&mut &wire[..]).unwrap(), answer);
    }

    #[test]
    fn collected_as_it_comes() {
        let (mut hello, mut request) = (Vec::new(), Vec::new());
        write_hello(&mut hello, b"/home").unwrap();
        write_request(&mut request, 7, b"abc").unwrap();
        for (wire, lacks, head) in [(hello, hello_lacks as fn(&[u8]) -> _, 16), (request, request_lacks, 8)] {
            for len in 0..=wire.len() {
                let whole = if len < head { head } else { wire.len() };
                assert_eq!(lacks(&wire[..len]).unwrap(), whole - len, "{len} bytes of {}", wire.len());
            }
        }
        let mut request = Vec::new();
        write_request(&mut request, 7, b"abc").unwrap();
        assert_eq!(whole_request(request[..10].to_vec()).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        assert_eq!(whole_request(request).unwrap(), WireRequest { ioctl_cmd: 7, buf: b"abc".to_vec() });
        let long = RequestHead { ioctl_cmd: 0, len: MAX_MESSAGE as u32 + 1 };
        assert_eq!(request_lacks(long.as_bytes()).unwrap_err().kind(), io::ErrorKind::InvalidData);
        assert_eq!(hello_lacks(b"GET / HTTP/1.1\r\n").unwrap_err().kind(), io::ErrorKind::InvalidData);
    }

    #[test]
    fn refused() {
        let hello = |change: fn(&mut HelloHead)| {
            let mut head = HelloHead { magic: MAGIC, version: VERSION, flags: 0, cwd_len: 1, reserved: 0 };
            change(&mut head);
            let wire = [head.as_bytes(), b"/"].concat();
            read_hello(&mut &wire[..]).map_err(|e| e.kind())
        };
        assert_eq!(hello(|_| ()), Ok(b"/".into()));
        assert_eq!(hello(|h| h.magic = *b"GET "), Err(io::ErrorKind::InvalidData));
        assert_eq!(hello(|h| h.version = 2), Err(io::ErrorKind::InvalidData));
        assert_eq!(hello(|h| h.cwd_len = 4097), Err(io::ErrorKind::InvalidData));
        assert_eq!(hello(|h| h.cwd_len = 2), Err(io::ErrorKind::UnexpectedEof));

        let long = RequestHead { ioctl_cmd: 0, len: MAX_MESSAGE as u32 + 1 };
        assert_eq!(read_request(&mut long.as_bytes()).unwrap_err().kind(), io::ErrorKind::InvalidData);
        let short = RequestHead { ioctl_cmd: 0, len: 9 };
        assert_eq!(read_request(&mut short.as_bytes()).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        assert_eq!(read_request(&mut &[0u8; 3][..]).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        assert_eq!(read_answer(&mut &[][..]).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        let long = write_request(&mut io::sink(), 0, &vec![0; MAX_MESSAGE + 1]);
        assert_eq!(long.unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }
}
