//! Lines of bounded length.

use std::io::{self, BufRead};

/// The longest line in bytes, its newline included. Statistics of a few thousand devices fit.
pub const MAX_LINE: usize = 4 << 20;

/// Reads a line of at most `max` bytes, without its newline; `None` at the end of the stream. Memory grows as bytes
/// arrive, so a peer that promises much and sends little costs little.
///
/// # Errors
/// The stream's; `InvalidData` for a line that is too long or not UTF-8; `UnexpectedEof` for one without an end.
pub fn read_line(stream: &mut impl BufRead, max: usize) -> io::Result<Option<String>> {
    let mut line = Vec::new();
    // One more than allowed tells a line that is too long from one that just fits.
    let mut bounded = io::Read::take(stream, max as u64 + 1);
    if bounded.read_until(b'\n', &mut line)? == 0 {
        return Ok(None);
    }
    let invalid = |message: String| io::Error::new(io::ErrorKind::InvalidData, message);
    if line.len() > max {
        return Err(invalid(format!("a line has more than {max} bytes")));
    }
    if line.pop() != Some(b'\n') {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    String::from_utf8(line).map(Some).map_err(|_| invalid("a line is not UTF-8".into()))
}
