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

mod background;
mod bio;
mod blocking;
mod channel;
mod clock;
mod cpu_work;
mod device;
mod direct_access;
mod domain;
mod executor;
mod extents;
mod internal_io;
mod job_pool;
mod limits;
mod memory;
mod null;
pub mod polling;
mod stream;
mod sync;

pub use background::Background;
pub use bio::{Bio, FrameFn, Op, OpFlags, Segment, Segments, Status, is_zero, zero_kernel};
pub use blocking::BlockingIo;
pub use channel::{
    Attached, BioReport, Channel, ChannelContent, ChannelReport, Completion, Cx, INTERNAL_MAX, InternalDone,
    InternalWaiter, LEVELS, Sleep, Source, Waker, Woken,
};
pub use clock::{Clock, MonotonicClock, Nanos};
pub use cpu_work::CpuWorkFn;
pub use device::{BlockDevice, DeviceId, Extent, ExtentKind, Outstanding};
pub use direct_access::{DirectAccess, IoAccounting};
pub use domain::{CHANNELS, Domain, DomainBuilder, Grace, MAX_CHANNELS};
pub use executor::{Executor, Joiner, ThreadExecutor};
pub use extents::{ExtentsReply, Question, Questions};
pub use internal_io::{InternalIo, InternalIoOwner, IoBuffer, IoMemory};
pub use job_pool::{JobPool, JobPoolOptions};
pub use limits::Limits;
pub use memory::{Memory, MemoryDevice};
pub use null::{NullDevice, NullSpec, NullSpecError};
pub use polling::{Cookie, PollPath, PollPolicy, PollTotals};
