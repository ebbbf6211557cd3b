//! The arguments of a target in a table line.
//!
//! Arguments are separated by white space; a backslash takes the next character as it is
//! (`dm_split_args`, `drivers/md/dm-table.c`, 6.12). Each keeps its place in the line, so that an
//! error can point at it.

use crate::Errno;
use std::fmt;
use std::ops::Range;

/// One argument, and the bytes of the parameters that it stands in.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Arg {
    /// The argument without its escapes.
    pub text: String,
    /// Its bytes within the parameters.
    pub span: Range<usize>,
}

/// A cursor over a target's arguments.
#[derive(Clone, Debug)]
pub struct Args {
    args: Vec<Arg>,
    next: usize,
    end: usize,
}

/// What is wrong with a target's arguments: the kernel's words, and what only its log would tell.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ArgError {
    /// The message of the kernel's constructor (`ti->error`).
    pub message: String,
    /// The number that the ioctl fails with.
    pub errno: Errno,
    /// What was expected and what was found, and what to do; may be empty.
    pub hint: String,
    /// The bytes of the parameters at fault, when it is some of them.
    pub span: Option<Range<usize>>,
}

impl ArgError {
    /// An error with the kernel's message, EINVAL, and no place.
    pub fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), errno: Errno::EINVAL, hint: String::new(), span: None }
    }

    /// The same with what was expected and found.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = hint.into();
        self
    }

    /// The same with another error number.
    #[must_use]
    pub fn errno(mut self, errno: Errno) -> Self {
        self.errno = errno;
        self
    }

    /// The same, pointing at an argument.
    #[must_use]
    pub fn at(mut self, arg: &Arg) -> Self {
        self.span = Some(arg.span.clone());
        self
    }
}

impl fmt::Display for ArgError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        if !self.hint.is_empty() {
            write!(f, ": {}", self.hint)?;
        }
        Ok(())
    }
}

impl std::error::Error for ArgError {}

impl Args {
    /// Splits `params`. Cost: one pass and one string for each argument.
    pub fn parse(params: &str) -> Self {
        let mut args: Vec<Arg> = Vec::new();
        let mut chars = params.char_indices().peekable();
        while let Some(&(start, c)) = chars.peek() {
            if is_space(c) {
                chars.next();
                continue;
            }
            let mut text = String::new();
            let mut end = start;
            while let Some(&(i, c)) = chars.peek() {
                if is_space(c) {
                    break;
                }
                chars.next();
                end = i + c.len_utf8();
                match (c, chars.peek().copied()) {
                    ('\\', Some((j, escaped))) => {
                        chars.next();
                        text.push(escaped);
                        end = j + escaped.len_utf8();
                    }
                    _ => text.push(c),
                }
            }
            args.push(Arg { text, span: start..end });
        }
        Self { args, next: 0, end: params.trim_end().len() }
    }

    /// How many arguments there are in all.
    pub fn len(&self) -> usize {
        self.args.len()
    }

    /// Whether there are none in all.
    pub fn is_empty(&self) -> bool {
        self.args.is_empty()
    }

    /// How many are left.
    pub fn left(&self) -> usize {
        self.args.len() - self.next
    }

    /// The next argument, or `None` after the last.
    pub fn take(&mut self) -> Option<Arg> {
        let arg = self.args.get(self.next).cloned();
        self.next += usize::from(arg.is_some());
        arg
    }

    /// The next argument; an error with the kernel's `message` when there is none.
    pub fn need(&mut self, message: &str, what: &str) -> Result<Arg, ArgError> {
        self.take().ok_or_else(|| {
            let end = self.end;
            ArgError { span: Some(end..end), ..ArgError::new(message) }
                .hint(format!("expected {what}, found the end of the line"))
        })
    }

    /// The next argument as a decimal number; an error with the kernel's `message` otherwise.
    pub fn number(&mut self, message: &str, what: &str) -> Result<(u64, Arg), ArgError> {
        let arg = self.need(message, what)?;
        match parse_u64(&arg.text) {
            Some(n) => Ok((n, arg)),
            None => {
                let hint = format!("expected {what} as a decimal number, found {:?}", arg.text);
                Err(ArgError::new(message).hint(hint).at(&arg))
            }
        }
    }

    /// An error unless the count of all arguments lies in `range`, as a constructor's first check.
    pub fn expect_count(
        &self,
        range: std::ops::RangeInclusive<usize>,
        message: &str,
        usage: &str,
    ) -> Result<(), ArgError> {
        if range.contains(&self.len()) {
            return Ok(());
        }
        let span = match self.args.get(*range.end()) {
            Some(surplus) => surplus.span.start..self.end,
            None => self.end..self.end,
        };
        let plural = if self.len() == 1 { "" } else { "s" };
        let hint = format!("expected {usage}, found {} argument{plural}", self.len());
        Err(ArgError { span: Some(span), ..ArgError::new(message) }.hint(hint))
    }
}

/// What the kernel's `isspace` takes for white space, in ASCII.
pub(crate) fn is_space(c: char) -> bool {
    c.is_ascii_whitespace() || c == '\x0b'
}

/// A decimal number of only digits that fits 64 bits.
fn parse_u64(s: &str) -> Option<u64> {
    if s.is_empty() || !s.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    s.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(s: &str) -> Vec<String> {
        Args::parse(s).args.into_iter().map(|a| a.text).collect()
    }

    #[test]
    fn splits_as_the_kernel() {
        for (input, expect) in [
            ("", vec![]),
            ("  \t", vec![]),
            ("/dev/sda 0", vec!["/dev/sda", "0"]),
            (" a  b\tc ", vec!["a", "b", "c"]),
            ("a\x0bb", vec!["a", "b"]),
            (r"/a\ b 0", vec!["/a b", "0"]),
            (r"a\\b", vec![r"a\b"]),
            (r"a\", vec![r"a\"]),
            ("é 1", vec!["é", "1"]),
        ] {
            assert_eq!(texts(input), expect, "{input:?}");
        }
    }

    #[test]
    fn spans_point_at_the_argument() {
        let mut args = Args::parse(r" /a\ b  12");
        assert_eq!(args.take().unwrap().span, 1..6);
        assert_eq!(args.take().unwrap().span, 8..10);
        assert_eq!(args.take(), None);
    }

    #[test]
    fn numbers() {
        for (input, expect) in [
            ("0", Some(0)),
            ("18446744073709551615", Some(u64::MAX)),
            ("18446744073709551616", None),
            ("-1", None),
            ("+1", None),
            ("0x10", None),
            ("1s", None),
        ] {
            let got = Args::parse(input).number("Invalid", "a length");
            assert_eq!(got.ok().map(|(n, _)| n), expect, "{input}");
        }
    }

    #[test]
    fn count_errors_point_at_the_surplus() {
        let args = Args::parse("a b c d");
        assert_eq!(args.expect_count(2..=2, "Invalid argument count", "<dev> <sector>").unwrap_err().span, Some(4..7));
        assert_eq!(args.expect_count(5..=5, "x", "y").unwrap_err().span, Some(7..7));
        assert!(args.expect_count(4..=4, "x", "y").is_ok());
    }
}
