//! Ways to a device's data: each is a client that somebody else's program could be.

pub mod file;
pub mod nbd;

use std::io;

/// What is asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum What {
    /// Data.
    Read,
    /// Takes data; with `fua` it is durable when answered.
    Write {
        /// Force unit access.
        fua: bool,
    },
    /// What was answered is durable.
    Flush,
    /// Not needed any more.
    Trim,
    /// Zeroes.
    Zero,
}

/// A request, and what became of it.
#[derive(Clone, Debug)]
pub struct Request {
    /// What is asked for.
    pub what: What,
    /// The first byte.
    pub offset: u64,
    /// How many bytes.
    pub length: u32,
    /// Data to be written, or that was read.
    pub data: Vec<u8>,
    /// The answer: an error number of the system, or `None` while there is none.
    pub answer: Option<Result<(), i32>>,
}

impl Request {
    /// A request without data to be written.
    pub fn new(what: What, offset: u64, length: u32) -> Self {
        Self { what, offset, length, data: Vec::new(), answer: None }
    }
}

/// A connection to a device.
pub trait Client: Send {
    /// Whether the device takes discards.
    fn trims(&self) -> bool;

    /// Has all requests out together where it can, and waits for the answers. `moved` is called for each.
    ///
    /// # Errors
    /// The connection is lost. Requests without an answer may have been done or not.
    fn execute(&mut self, batch: &mut [Request], moved: &mut dyn FnMut()) -> io::Result<()>;
}
