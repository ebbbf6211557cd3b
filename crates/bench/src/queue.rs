//! The requests of one job: slots with a buffer each, and the lane that they go out on.
//!
//! # Why this is sound
//! A [`Slot`] is the right to touch the buffer of its number. There is one for each buffer; it cannot be copied, and
//! submitting gives it away until the completion brings it back. So no buffer is touched while a device has it. The
//! queue is made and used within [`Queue::run`] only, so that slots of two queues do not meet, and it waits for
//! what is out before its memory goes.

use crate::lane::Lane;
use std::ptr::NonNull;
use std::time::Duration;
use udm_base::AlignedBuf;
use udm_io::{Op, Status};

/// The right to use one buffer.
pub struct Slot(u32);

impl Slot {
    /// Its number, below the queue's depth.
    #[inline(always)]
    pub fn index(&self) -> usize {
        self.0 as usize
    }
}

/// A lane and the buffers of what is out on it.
pub struct Queue<L: Lane> {
    lane: L,
    /// Its own, unless the lane has some.
    _own: Option<AlignedBuf>,
    memory: NonNull<u8>,
    len: usize,
    out: usize,
}

impl<L: Lane> Queue<L> {
    /// Lets `work` use a queue of `depth` buffers of `len` bytes, with the slots of all of them. `init` gives the
    /// buffers their first content, so that they have their pages.
    pub fn run<T>(
        lane: L,
        depth: usize,
        len: usize,
        mut init: impl FnMut(&mut [u8]),
        work: impl FnOnce(&mut Self, Vec<Slot>) -> T,
    ) -> T {
        let theirs = lane.memory(depth * len);
        let own = if theirs.is_none() { Some(AlignedBuf::zeroed(depth * len)) } else { None };
        let memory = theirs.or(own.as_ref().and_then(|own| NonNull::new(own.as_ptr()))).expect("one of them");
        // SAFETY: as many bytes, of our own or of the lane's, that nobody else uses.
        init(unsafe { std::slice::from_raw_parts_mut(memory.as_ptr(), depth * len) });
        let slots = (0..depth as u32).rev().map(Slot).collect();
        let mut queue = Self { lane, _own: own, memory, len, out: 0 };
        work(&mut queue, slots)
    }

    /// The buffer of a slot.
    #[inline(always)]
    pub fn buffer(&mut self, slot: &mut Slot) -> &mut [u8] {
        // SAFETY: the slot's number lies below the depth; who has the slot has the buffer, and not the device.
        unsafe { std::slice::from_raw_parts_mut(self.memory.as_ptr().add(slot.index() * self.len), self.len) }
    }

    /// Sends a request at `byte` of the device.
    #[inline(always)]
    pub fn submit(&mut self, slot: Slot, op: Op, byte: u64) {
        self.submit_part(slot, op, byte, self.len);
    }

    /// The same with the first `len` bytes of the buffer.
    #[inline(always)]
    pub fn submit_part(&mut self, mut slot: Slot, op: Op, byte: u64, len: usize) {
        let memory: *mut [u8] = &mut self.buffer(&mut slot)[..len];
        // SAFETY: the slot is given away, so that nobody touches the buffer until `completed` gives it back; `drop`
        // sees to it that the memory stays until then.
        let taken = unsafe { self.lane.submit(op, byte, &mut *memory, u64::from(slot.0)) };
        assert!(taken, "the lane has room for every slot");
        self.out += 1;
    }

    /// A request that is done, if there is one.
    #[inline(always)]
    pub fn completed(&mut self) -> Option<(Slot, Status)> {
        let done = self.lane.completed()?;
        self.out -= 1;
        Some((Slot(done.token as u32), done.status))
    }

    /// Starts and takes in what can be.
    #[inline]
    pub fn poll(&mut self) -> usize {
        self.lane.poll()
    }

    /// Nothing was there: polls, and waits if that brings nothing.
    #[inline(never)]
    pub fn idle(&mut self) -> std::io::Result<()> {
        // So that a device that hangs does not hide the end of the run.
        self.idle_for(Duration::from_millis(10))
    }

    /// The same, and waits for `most` at the longest.
    #[inline(never)]
    pub fn idle_for(&mut self, most: Duration) -> std::io::Result<()> {
        if self.lane.poll() > 0 {
            return Ok(());
        }
        if self.lane.spins() {
            std::hint::spin_loop();
            return Ok(());
        }
        self.lane.wait(most)
    }

    /// Waits for everything that is out.
    pub fn drain<E: From<std::io::Error>>(
        &mut self,
        mut each: impl FnMut(&mut Self, Slot, Status) -> Result<(), E>,
    ) -> Result<(), E> {
        while self.out > 0 {
            match self.completed() {
                Some((slot, status)) => each(self, slot, status)?,
                None => self.idle()?,
            }
        }
        Ok(())
    }

    /// Gives `each` every slot, first as it is, then with the status of its request; `each` may submit it again. Ends
    /// when nothing is out, or at the first error. For work whose speed does not matter.
    pub fn pump<E: From<std::io::Error>>(
        &mut self,
        slots: Vec<Slot>,
        mut each: impl FnMut(&mut Self, Slot, Option<Status>) -> Result<(), E>,
    ) -> Result<(), E> {
        for slot in slots {
            each(self, slot, None)?;
        }
        while self.out > 0 {
            match self.completed() {
                Some((slot, status)) => each(self, slot, Some(status))?,
                None => self.idle()?,
            }
        }
        Ok(())
    }
}

impl<L: Lane> Drop for Queue<L> {
    fn drop(&mut self) {
        while self.out > 0 {
            if self.completed().is_none() && self.idle().is_err() {
                std::thread::yield_now();
            }
        }
    }
}
