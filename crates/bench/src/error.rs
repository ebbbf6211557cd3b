//! What can go wrong in a measurement.

use udm_io::{Op, Status};

/// Why there is no figure.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The load does not fit the device, or contradicts itself. The text says what to change.
    #[error("{0}")]
    Load(String),
    /// The devices of the specification could not be made.
    #[error("{0}")]
    Stack(String),
    /// An I/O failed.
    #[error("{device}: {op} of {bytes} bytes at byte {offset} failed: {}", text(*.status))]
    Io {
        /// The device's name.
        device: String,
        /// `read` or `write`.
        op: &'static str,
        /// Where, in bytes.
        offset: u64,
        /// How many.
        bytes: usize,
        /// How it ended.
        status: Status,
    },
    /// The device gave back other data than it was given.
    #[error("{device}: verify failed at byte {offset}: {detail}")]
    Verify {
        /// The device's name.
        device: String,
        /// The first byte that is wrong.
        offset: u64,
        /// What was found there and what was expected.
        detail: String,
    },
    /// The system refused memory, a thread or a descriptor.
    #[error("{what}: {source}")]
    System {
        /// What was being done.
        what: String,
        /// The system's error.
        source: std::io::Error,
    },
}

fn text(status: Status) -> String {
    status.errno().map_or_else(|| "no error".to_owned(), |errno| errno.to_string())
}

/// Why a job ended early, before it is known whose.
pub enum JobError {
    /// A request failed.
    Failed {
        /// What was to be done.
        op: Op,
        /// Where, in bytes.
        byte: u64,
        /// How many.
        bytes: usize,
        /// How it ended.
        status: Status,
    },
    /// The data is wrong.
    Wrong {
        /// From this byte on.
        byte: u64,
        /// What was found there and what was expected.
        detail: String,
    },
    /// No channel could be had, or waiting on it failed.
    System(std::io::Error),
}

impl From<std::io::Error> for JobError {
    fn from(e: std::io::Error) -> Self {
        Self::System(e)
    }
}

impl JobError {
    /// The error with the name of the device.
    pub fn of(self, device: &str) -> Error {
        let device = device.to_owned();
        match self {
            Self::Failed { op, byte, bytes, status } => {
                let op = if op == Op::Read { "read" } else { "write" };
                Error::Io { device, op, offset: byte, bytes, status }
            }
            Self::Wrong { byte, detail } => Error::Verify { device, offset: byte, detail },
            Self::System(source) => Error::System { what: format!("{device}: a channel"), source },
        }
    }
}
