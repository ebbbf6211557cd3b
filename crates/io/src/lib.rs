//! Floor 1: bios, channels and domains, and devices in memory.
//!
//! # How an I/O goes
//! A thread makes a [`Channel`] in a [`Domain`], attaches the devices it uses, takes a [`Bio`] from the
//! channel, fills it and submits it. [`BlockDevice::submit`] either ends the bio, keeps it until its
//! I/O is done, or hands it back redirected to a device beneath; the loop that calls it is iterative,
//! so that the depth of a stack costs no stack. [`Bio::end`] consumes the bio: its completion frames
//! run on the channel it came from, and the submitter finds a [`Completion`] in the channel's queue.
//!
//! # Invariants
//! - A bio is ended on any thread and completes on its own channel; nothing of the channel is written
//!   by another thread but its mailbox, or by a remote poller that holds the channel (see [`Domain`]).
//! - Nothing here blocks but [`Channel::wait`] and [`BlockingIo`].
//! - Nothing here reads a wall clock or starts a thread except through [`Clock`] and [`Executor`].

mod bio;
mod blocking;
mod channel;
mod clock;
mod direct_access;
mod domain;
mod executor;
mod extents;
mod internal_io;
mod job_pool;
mod limits;
mod memory;
mod memory_device;
mod null;
pub mod polling;
mod questions;
mod stream;
mod sync;

pub use bio::{Op, OpFlags, Segment, Segments, Status, is_zero, zero_kernel};
pub use blocking::BlockingIo;
pub use channel::{
    Attached, Background, Bio, BioReport, BlockDevice, CHANNELS, Channel, ChannelContent, ChannelReport, Completion,
    CpuWorkFn, Cx, DeviceId, Domain, FrameFn, INTERNAL_MAX, InternalDone, InternalWaiter, LEVELS, MAX_CHANNELS,
    Outstanding, Sleep, Source, Waker, Woken,
};
pub use clock::{Clock, MonotonicClock, Nanos};
pub use direct_access::{DirectAccess, IoAccounting};
pub use domain::{DomainBuilder, Grace};
pub use executor::{Executor, Joiner, ThreadExecutor};
pub use extents::{Extent, ExtentKind, ExtentsReply, Question};
pub use internal_io::{InternalIo, InternalIoOwner, IoBuffer, IoMemory};
pub use job_pool::{JobPool, JobPoolOptions};
pub use limits::Limits;
pub use memory::Memory;
pub use memory_device::MemoryDevice;
pub use null::{NullDevice, NullSpec, NullSpecError};
pub use polling::{Cookie, PollPath, PollPolicy, PollTotals};
pub use questions::Questions;
