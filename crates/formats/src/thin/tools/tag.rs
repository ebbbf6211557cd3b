//! As much of XML as thin_dump writes: elements with attributes, comments, a declaration. Read piece by piece, so that
//! a file of any size takes no more memory than its longest tag.

use std::io::{BufRead, Read};

use super::Error;

/// A tag, or a text between tags, is no longer than this.
const LONGEST: u64 = 1 << 16;

/// What a tag does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Form {
    Open,
    Close,
    /// Opens and closes.
    Empty,
}

/// A tag with its attributes, unread.
#[derive(Debug)]
pub(super) struct Tag<'a> {
    pub(super) line: u64,
    pub(super) form: Form,
    pub(super) name: &'a str,
    attributes: &'a str,
}

/// See the module.
pub(super) struct Tags<'a> {
    input: &'a mut dyn BufRead,
    text: Vec<u8>,
    line: u64,
    /// Bytes read.
    pub(super) read: u64,
}

pub(super) fn bad<T>(line: u64, what: impl Into<String>) -> Result<T, Error> {
    Err(Error::Xml { line, what: what.into() })
}

fn lines(bytes: &[u8]) -> u64 {
    bytes.iter().filter(|b| **b == b'\n').count() as u64
}

impl<'a> Tags<'a> {
    pub(super) fn new(input: &'a mut dyn BufRead) -> Self {
        Self { input, text: Vec::new(), line: 1, read: 0 }
    }

    /// Appends everything up to and with `end` to the text. Whether `end` came.
    fn until(&mut self, end: u8) -> Result<bool, Error> {
        let before = self.text.len();
        let room = LONGEST.saturating_sub(before as u64);
        let read = (&mut *self.input).take(room).read_until(end, &mut self.text);
        self.read += read.map_err(|error| Error::Io { what: "reading the XML", error })? as u64;
        let here = &self.text[before..];
        let came = here.last() == Some(&end);
        if !came && self.text.len() as u64 >= LONGEST {
            return bad(self.line, format!("more than {LONGEST} bytes without {:?}", char::from(end)));
        }
        Ok(came)
    }

    /// The next tag; `None` at the end of the input.
    pub(super) fn next(&mut self) -> Result<Option<Tag<'_>>, Error> {
        loop {
            self.text.clear();
            let came = self.until(b'<')?;
            let between = &self.text[..self.text.len() - usize::from(came)];
            if !between.iter().all(u8::is_ascii_whitespace) {
                return bad(self.line, "text between tags, where only tags may be");
            }
            self.line += lines(between);
            if !came {
                return Ok(None);
            }
            self.text.clear();
            if self.whole()? {
                break;
            }
        }
        let line = self.line;
        let text = &self.text[..self.text.len() - 1];
        self.line += lines(text);
        let Ok(text) = std::str::from_utf8(text) else {
            return bad(line, "a tag that is not UTF-8");
        };
        let (form, text) = match (text.strip_prefix('/'), text.strip_suffix('/')) {
            (Some(text), _) => (Form::Close, text),
            (None, Some(text)) => (Form::Empty, text),
            (None, None) => (Form::Open, text),
        };
        let (name, attributes) = text.split_once(|c: char| c.is_ascii_whitespace()).unwrap_or((text, ""));
        if name.is_empty() {
            return bad(line, "a tag without a name");
        }
        Ok(Some(Tag { line, form, name, attributes }))
    }

    /// Reads from behind `<` to the end of a tag. False after a comment or declaration, which are passed over.
    fn whole(&mut self) -> Result<bool, Error> {
        loop {
            if !self.until(b'>')? {
                return bad(self.line, "the input ends within a tag: it was cut short");
            }
            let text = &self.text;
            if text.starts_with(b"!--") {
                if text.len() >= 6 && text.ends_with(b"-->") {
                    break;
                }
            } else if text.starts_with(b"!") {
                return bad(self.line, "a document type or section, which no dump has");
            } else if text.starts_with(b"?") {
                if text.ends_with(b"?>") {
                    break;
                }
            } else if is_closed(text) {
                return Ok(true);
            }
        }
        self.line += lines(&self.text);
        Ok(false)
    }
}

/// Whether every quote has its partner, so that the last byte ends the tag.
fn is_closed(text: &[u8]) -> bool {
    let mut open = None;
    for byte in text.iter().filter(|b| matches!(b, b'"' | b'\'')) {
        match open {
            None => open = Some(byte),
            Some(quote) if quote == byte => open = None,
            Some(_) => {}
        }
    }
    open.is_none()
}

impl Tag<'_> {
    /// The text of an attribute, as it stands there.
    fn raw(&self, name: &str) -> Result<Option<&str>, Error> {
        let mut rest = self.attributes.trim_ascii();
        let mut found = None;
        while !rest.is_empty() {
            let split = rest.split_once('=').and_then(|(key, rest)| {
                let rest = rest.trim_ascii_start();
                let quote = rest.chars().next().filter(|c| matches!(c, '"' | '\''))?;
                let (value, rest) = rest[1..].split_once(quote)?;
                Some((key.trim_ascii_end(), value, rest))
            });
            let Some((key, value, after)) = split else {
                return bad(self.line, format!("{rest:?} in <{}>: expected NAME=\"VALUE\"", self.name));
            };
            if key == name && found.replace(value).is_some() {
                return bad(self.line, format!("<{}> has {name} twice", self.name));
            }
            if !after.is_empty() && !after.starts_with(|c: char| c.is_ascii_whitespace()) {
                return bad(self.line, format!("<{}>: expected a blank after {key}", self.name));
            }
            rest = after.trim_ascii_start();
        }
        Ok(found)
    }

    /// An attribute's text, with entities resolved.
    pub(super) fn text(&self, name: &str) -> Result<String, Error> {
        let Some(raw) = self.raw(name)? else { return bad(self.line, format!("<{}> has no {name}", self.name)) };
        let entities = [("&lt;", "<"), ("&gt;", ">"), ("&quot;", "\""), ("&apos;", "'"), ("&amp;", "&")];
        Ok(entities.iter().fold(raw.to_owned(), |text, (entity, char)| text.replace(entity, char)))
    }

    /// A number that may be absent.
    pub(super) fn maybe(&self, name: &str, most: u64) -> Result<Option<u64>, Error> {
        let Some(raw) = self.raw(name)? else { return Ok(None) };
        match raw.parse::<u64>() {
            Ok(number) if number <= most && raw.bytes().all(|b| b.is_ascii_digit()) => Ok(Some(number)),
            _ => bad(self.line, format!("<{}>: {name} is {raw:?}, expected a number from 0 to {most}", self.name)),
        }
    }

    /// A number.
    pub(super) fn number(&self, name: &str, most: u64) -> Result<u64, Error> {
        match self.maybe(name, most)? {
            Some(number) => Ok(number),
            None => bad(self.line, format!("<{}> has no {name}", self.name)),
        }
    }
}
