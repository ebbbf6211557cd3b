//! Reading fields off a slice, with every length checked.

use super::WireError;
use super::consts::MAX_STRING;

/// A position in a received message. Each method takes one field off the front.
///
/// ```
/// use udm_nbd::wire::Cursor;
/// let mut cursor = Cursor::new(&[0, 0, 0, 7, 1]);
/// assert_eq!(cursor.u32("length"), Ok(7));
/// assert!(cursor.u16("flags").is_err());
/// ```
#[derive(Clone, Debug)]
pub struct Cursor<'a> {
    rest: &'a [u8],
}

impl<'a> Cursor<'a> {
    /// Starts at the front of `bytes`.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// Bytes not yet taken.
    pub fn remaining(&self) -> usize {
        self.rest.len()
    }

    /// Takes `len` bytes; `field` names them in the error.
    pub fn bytes(&mut self, len: usize, field: &'static str) -> Result<&'a [u8], WireError> {
        match self.rest.split_at_checked(len) {
            Some((taken, rest)) => {
                self.rest = rest;
                Ok(taken)
            }
            None => Err(WireError::Truncated { field, need: len, have: self.rest.len() }),
        }
    }

    fn array<const N: usize>(&mut self, field: &'static str) -> Result<[u8; N], WireError> {
        match self.rest.split_first_chunk::<N>() {
            Some((taken, rest)) => {
                self.rest = rest;
                Ok(*taken)
            }
            None => Err(WireError::Truncated { field, need: N, have: self.rest.len() }),
        }
    }

    /// Takes a big-endian 16-bit number.
    pub fn u16(&mut self, field: &'static str) -> Result<u16, WireError> {
        self.array(field).map(u16::from_be_bytes)
    }

    /// Takes a big-endian 32-bit number.
    pub fn u32(&mut self, field: &'static str) -> Result<u32, WireError> {
        self.array(field).map(u32::from_be_bytes)
    }

    /// Takes a big-endian 64-bit number.
    pub fn u64(&mut self, field: &'static str) -> Result<u64, WireError> {
        self.array(field).map(u64::from_be_bytes)
    }

    /// Takes `len` bytes as a string: UTF-8, no NUL, at most [`MAX_STRING`] bytes.
    pub fn string(&mut self, len: usize, field: &'static str) -> Result<&'a str, WireError> {
        let error = WireError::String { field, max: MAX_STRING };
        if len > MAX_STRING {
            return Err(error);
        }
        match std::str::from_utf8(self.bytes(len, field)?) {
            Ok(text) if !text.contains('\0') => Ok(text),
            _ => Err(error),
        }
    }

    /// Takes a string that its 32-bit length precedes.
    pub fn counted_string(&mut self, field: &'static str) -> Result<&'a str, WireError> {
        let len = self.u32(field)?;
        self.string(usize::try_from(len).unwrap_or(usize::MAX), field)
    }

    /// Checks that nothing is left of `message`.
    pub fn finish(self, message: &'static str) -> Result<(), WireError> {
        match self.rest.len() {
            0 => Ok(()),
            extra => Err(WireError::Trailing { message, extra }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_come_off_in_order_and_the_end_is_an_error() {
        let mut cursor = Cursor::new(&[0x12, 0x34, 0, 0, 0, 2, b'a', b'b', 9]);
        assert_eq!(cursor.u16("a"), Ok(0x1234));
        assert_eq!(cursor.counted_string("b"), Ok("ab"));
        assert_eq!(cursor.clone().finish("m"), Err(WireError::Trailing { message: "m", extra: 1 }));
        assert_eq!(cursor.u64("c"), Err(WireError::Truncated { field: "c", need: 8, have: 1 }));
        assert_eq!(cursor.bytes(1, "d"), Ok(&[9][..]));
        assert_eq!(cursor.finish("m"), Ok(()));
    }

    #[test]
    fn a_string_is_bounded_utf8_without_nul() {
        let error = Err(WireError::String { field: "s", max: MAX_STRING });
        assert_eq!(Cursor::new(&[0xff]).string(1, "s"), error);
        assert_eq!(Cursor::new(b"a\0b").string(3, "s"), error);
        assert_eq!(Cursor::new(&[b'x'; MAX_STRING + 1]).string(MAX_STRING + 1, "s"), error);
        assert_eq!(Cursor::new(&[0xff, 0xff, 0xff, 0xff]).counted_string("s"), error);
        assert_eq!(Cursor::new("é".as_bytes()).string(2, "s"), Ok("é"));
    }
}
