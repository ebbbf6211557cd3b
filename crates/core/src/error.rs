//! Errors of the control side: the number the kernel's ioctl gives, and the words it lacks.

use crate::TableLine;
use std::ops::Range;
use udm_base::{ArgError, Errno};

/// Why a control operation failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Error {
    /// As the ioctl returns it.
    pub errno: Errno,
    /// What was given, what was expected, what to do. May have several lines.
    pub message: String,
}

impl Error {
    /// An error with its number and words.
    pub fn new(errno: Errno, message: impl Into<String>) -> Self {
        Self { errno, message: message.into() }
    }
}

/// What is wrong with a table, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableError {
    /// As the ioctl returns it.
    pub errno: Errno,
    /// The line's number, from 0.
    pub line: usize,
    /// The kernel's message.
    pub message: String,
    /// What was expected and found; may be empty.
    pub hint: String,
    /// The bytes of the line's text (as [`TableLine`] displays itself) at fault.
    pub span: Option<Range<usize>>,
}

impl TableError {
    pub(crate) fn new(line: usize, message: impl Into<String>) -> Self {
        Self { errno: Errno::EINVAL, line, message: message.into(), hint: String::new(), span: None }
    }

    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = hint.into();
        self
    }

    pub(crate) fn span(mut self, span: Range<usize>) -> Self {
        self.span = Some(span);
        self
    }

    /// A constructor's error, whose span counts within the parameters of `line`.
    pub(crate) fn of_ctr(number: usize, line: &TableLine, error: ArgError) -> Self {
        let shift = line.params_offset();
        Self {
            errno: error.errno,
            line: number,
            message: format!("{}: {}", line.target, error.message),
            hint: error.hint,
            span: error.span.map(|s| s.start + shift..s.end + shift),
        }
    }

    /// The error with its line and a caret under what is at fault:
    ///
    /// ```text
    /// line 1: linear: Invalid device sector: expected a decimal number, found "x"
    ///   0 100 linear /dev/sda x
    ///                         ^
    /// ```
    pub fn render(&self, lines: &[TableLine]) -> String {
        let mut out = format!("line {}: {}", self.line + 1, self.message);
        if !self.hint.is_empty() {
            out += ": ";
            out += &self.hint;
        }
        if let Some(line) = lines.get(self.line) {
            let text = line.to_string();
            out += "\n  ";
            out += &text;
            if let Some(span) = &self.span {
                let before = text.get(..span.start).map_or(span.start, |s| s.chars().count());
                let width = text.get(span.clone()).map_or(1, |s| s.chars().count()).max(1);
                out += &format!("\n  {}{}", " ".repeat(before), "^".repeat(width));
            }
        }
        out
    }

    /// With its text rendered, as a control error.
    pub fn into_error(self, lines: &[TableLine]) -> Error {
        Error::new(self.errno, self.render(lines))
    }
}
