//! What is wrong.

use std::fmt;

/// How bad it is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Severity {
    /// Nothing is lost and nothing can go wrong: a sum that is only a hint is not exact.
    Note,
    /// Space is lost, no data.
    NonFatal,
    /// Data can be lost, or is.
    Fatal,
}

/// A fault, in words that name block and field, what was found and what was expected.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fault {
    /// How bad.
    pub severity: Severity,
    /// What.
    pub text: String,
}

impl Fault {
    pub(super) fn fatal(what: &impl fmt::Display) -> Self {
        Self { severity: Severity::Fatal, text: what.to_string() }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.severity {
            Severity::Note => "note: ",
            Severity::NonFatal => "not fatal: ",
            Severity::Fatal => "",
        })?;
        f.write_str(&self.text)
    }
}
