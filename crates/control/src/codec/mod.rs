//! `struct dm_ioctl` and its payloads as bytes, in both directions.
//!
//! The layouts, the numbers and the rules are those of `include/uapi/linux/dm-ioctl.h` and
//! `drivers/md/dm-ioctl.c`, interface 4.48.0 (kernel 6.12). Integers are in the machine's own byte
//! order, since client and daemon share a machine.
//!
//! - A client builds its buffer with [`RequestBuilder`] and reads the answer with [`Response`].
//! - The daemon reads the buffer with [`Request`] and answers with [`Reply`], which knows how a
//!   result that does not fit raises [`Flags::BUFFER_FULL`].
//!
//! Nothing here does I/O or keeps state. Bytes that are not what they should be give a
//! [`CodecError`], never a panic, and no allocation is larger than the buffer that asks for it.
//!
//! ```
//! use udm_control::codec::{Command, Reply, Request, RequestBuilder, Response};
//!
//! let bytes = RequestBuilder::new(Command::DevStatus).name(b"vol").build()?;
//!
//! // In the daemon:
//! let request = Request::parse(Command::DevStatus.ioctl_number(), &bytes)?;
//! assert_eq!(request.name(), b"vol");
//! let mut reply = Reply::to(&request);
//! reply.header_mut().event_nr = 7;
//! let answer = reply.finish();
//!
//! // In the client:
//! assert_eq!(Response::parse(&answer)?.header().event_nr, 7);
//! # Ok::<(), udm_control::codec::CodecError>(())
//! ```

mod build;
mod command;
mod error;
mod flags;
mod header;
mod records;
mod reply;
mod request;
mod response;
mod target;

pub use build::RequestBuilder;
pub use command::Command;
pub use error::CodecError;
pub use flags::{Flags, NameListFlags};
pub use header::{DM_NAME_LEN, DM_UUID_LEN, DmIoctl, HEADER_LEN, INTERFACE_VERSION, MIN_DATA_SIZE};
pub use reply::{NameEntry, Reply};
pub use request::{DeviceKey, Geometry, Request};
pub use response::Response;
pub use target::{DM_MAX_TYPE_NAME, TargetSpec, TargetVersion};

#[cfg(test)]
mod tests;
