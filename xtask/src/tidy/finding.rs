//! What a check has found.

use std::fmt;

/// One broken rule, at one place.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Finding {
    /// Path from the workspace's root, with `/`.
    pub path: String,
    /// Counted from 1; 1 too when the file as a whole is meant.
    pub line: usize,
    /// What is wrong and what to do about it, in one sentence or two.
    pub message: String,
}

impl Finding {
    pub(super) fn new(path: impl Into<String>, line: usize, message: impl Into<String>) -> Self {
        Self { path: path.into(), line, message: message.into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path, self.line, self.message)
    }
}
