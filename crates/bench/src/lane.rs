//! Where a job's requests go: to a device through a channel, or to plain copies.

use std::collections::VecDeque;
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;
use udm_base::Sector;
use udm_io::{Attached, Channel, Completion, Op, OpFlags, Status};

use crate::CompletionMode;
use crate::floor::Floor;

/// One thread's way to a subject.
pub trait Lane {
    /// Where the memory of requests has to lie, if the lane cares: `bytes` on a page border, the lane's as long as it
    /// lives.
    fn memory(&self, bytes: usize) -> Option<NonNull<u8>> {
        let _ = bytes;
        None
    }

    /// Submits a request. False when as many are out as the lane was made for.
    ///
    /// # Safety
    /// `memory` is the lane's until the completion with `token` has been taken.
    unsafe fn submit(&mut self, op: Op, byte: u64, memory: &mut [u8], token: u64) -> bool;

    /// The next completion that is there.
    fn completed(&mut self) -> Option<Completion>;

    /// Starts and takes in what can be; returns how much moved.
    fn poll(&mut self) -> usize;

    /// Sleeps until there is something to poll, or for `most`.
    fn wait(&mut self, most: Duration) -> std::io::Result<()>;

    /// Whether the lane is to be polled rather than slept on.
    fn spins(&self) -> bool;
}

/// To a device.
pub struct ChannelLane {
    channel: Channel,
    at: Attached,
    flags: OpFlags,
}

impl ChannelLane {
    /// `depth` requests at most.
    pub fn new(channel: Channel, dev: Arc<dyn udm_io::BlockDevice>, depth: usize, mode: CompletionMode) -> Self {
        channel.set_depth(depth);
        let at = channel.attach(dev);
        channel.set_adaptive(mode == CompletionMode::Adaptive);
        let polled = if mode == CompletionMode::Poll { OpFlags::HIPRI } else { OpFlags::NONE };
        Self { channel, at, flags: OpFlags::SCRATCH.with(polled) }
    }
}

impl Lane for ChannelLane {
    #[inline(always)]
    unsafe fn submit(&mut self, op: Op, byte: u64, memory: &mut [u8], token: u64) -> bool {
        // SAFETY: the caller's promise.
        unsafe { self.channel.submit(self.at, op, self.flags, Sector::containing(byte), memory, token) }
    }

    #[inline(always)]
    fn completed(&mut self) -> Option<Completion> {
        self.channel.completed()
    }

    fn poll(&mut self) -> usize {
        self.channel.poll()
    }

    fn wait(&mut self, most: Duration) -> std::io::Result<()> {
        self.channel.wait(Some(most), &mut Vec::new())
    }

    fn spins(&self) -> bool {
        self.flags.contains(OpFlags::HIPRI) && self.channel.is_polled()
    }
}

/// To copies out of and into a buffer.
pub(crate) struct FloorLane {
    floor: Arc<Floor>,
    /// Room for every request is made at the start.
    done: VecDeque<u64>,
}

impl FloorLane {
    pub(crate) fn new(floor: Arc<Floor>, depth: usize) -> Self {
        Self { floor, done: VecDeque::with_capacity(depth) }
    }
}

impl Lane for FloorLane {
    #[inline(always)]
    unsafe fn submit(&mut self, op: Op, byte: u64, memory: &mut [u8], token: u64) -> bool {
        match op {
            Op::Write => self.floor.write(byte, memory),
            _ => self.floor.read(byte, memory),
        }
        self.done.push_back(token);
        true
    }

    #[inline(always)]
    fn completed(&mut self) -> Option<Completion> {
        self.done.pop_front().map(|token| Completion { token, status: Status::Ok })
    }

    fn poll(&mut self) -> usize {
        0
    }

    fn wait(&mut self, _: Duration) -> std::io::Result<()> {
        Ok(())
    }

    fn spins(&self) -> bool {
        true
    }
}
