//! Why a tool gave up.

use std::io;

/// See the module.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The metadata are not what they have to be, or cannot be read or written.
    #[error(transparent)]
    Thin(#[from] super::super::Error),
    /// What was read as XML cannot be restored.
    #[error("line {line}: {what}")]
    Xml {
        /// Lines count from 1.
        line: u64,
        /// What is wrong, and what was expected.
        what: String,
    },
    /// The result cannot be written, or the input not be read.
    #[error("{what}: {error}")]
    Io {
        /// What was tried.
        what: &'static str,
        /// What the system says.
        error: io::Error,
    },
    /// The caller asked for what cannot be.
    #[error("{0}")]
    Refused(String),
}

impl From<udm_pdata::Error> for Error {
    fn from(error: udm_pdata::Error) -> Self {
        Self::Thin(error.into())
    }
}

impl Error {
    pub(super) fn output(error: io::Error) -> Self {
        Self::Io { what: "writing the result", error }
    }

    /// Whether whoever read the result has gone.
    #[must_use]
    pub fn is_broken_pipe(&self) -> bool {
        matches!(self, Self::Io { error, .. } if error.kind() == io::ErrorKind::BrokenPipe)
    }
}
