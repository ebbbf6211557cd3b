//! A queue as the driver has it: a ring that its commands go by, and memory with the descriptors of its requests.

use super::uapi::{IoCommand, IoDescriptor, descriptors, in_submission, queue};
use io_uring::types::Fd;
use io_uring::{IoUring, cqueue, opcode, squeue};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::io;
use std::ptr::NonNull;
use std::sync::Arc;

/// The driver, seen from a queue's thread.
pub(super) trait Port {
    /// Queues a command: that the slot `tag` may be given a request, whose data goes to or comes from `buffer`.
    /// `result`: the request that the slot had ended so, in bytes or as an error number below 0.
    ///
    /// # Safety
    /// The driver reads and writes `buffer`, of as many bytes as requests may have, until the port is dropped or the
    /// slot's next request has been answered.
    unsafe fn push(&mut self, tag: u16, result: Option<i32>, buffer: *mut u8);

    /// Has the driver take in what is queued. Does not block.
    fn submit(&mut self) -> io::Result<()>;

    /// Slots that were given something, and the driver's word on each, into `into`.
    fn reap(&mut self, into: &mut Vec<(u16, i32)>);

    /// The request that a slot was given.
    fn request(&self, tag: u16) -> IoDescriptor;

    /// Becomes readable when there is something to reap.
    fn fd(&self) -> BorrowedFd<'_>;
}

/// The descriptors of a queue's requests, which the driver writes.
struct Descriptors {
    base: NonNull<IoDescriptor>,
    bytes: usize,
}

impl Drop for Descriptors {
    fn drop(&mut self) {
        // SAFETY: mapped by `UringPort::new`, and nothing refers to it any more.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}

/// The kernel's. Belongs to the thread that made it: the driver takes commands of a queue from one only.
pub(super) struct UringPort {
    // In this order: the ring's end takes the commands back.
    ring: IoUring<squeue::Entry128, cqueue::Entry>,
    descriptors: Descriptors,
    /// The last of the device's file goes with the last of its threads.
    device: Arc<OwnedFd>,
    queue: u16,
    depth: u16,
}

impl UringPort {
    /// That of a queue of the device whose character device is `device`.
    pub(super) fn new(device: Arc<OwnedFd>, queue: u16, depth: u16) -> io::Result<Self> {
        let ring = IoUring::builder()
            .dontfork()
            .setup_coop_taskrun()
            .setup_taskrun_flag()
            .build(depth.into())
            .map_err(|e| io::Error::new(e.kind(), format!("a ring for {depth} requests: {e}")))?;
        let (offset, bytes) = descriptors(queue, depth, rustix::param::page_size());
        let file = device.as_fd();
        // SAFETY: a new mapping, whose place the kernel chooses.
        let base = unsafe {
            mmap(std::ptr::null_mut(), bytes, ProtFlags::READ, MapFlags::SHARED | MapFlags::POPULATE, file, offset)
        };
        let base = base
            .map_err(io::Error::from)
            .and_then(|at| NonNull::new(at.cast()).ok_or_else(|| io::Error::other("descriptors at address 0")));
        let base = base.map_err(|e| io::Error::new(e.kind(), format!("the descriptors of queue {queue}: {e}")))?;
        Ok(Self { ring, descriptors: Descriptors { base, bytes }, device, queue, depth })
    }
}

impl Port for UringPort {
    unsafe fn push(&mut self, tag: u16, result: Option<i32>, buffer: *mut u8) {
        let number = if result.is_some() { queue::COMMIT_AND_FETCH_REQ } else { queue::FETCH_REQ };
        let command = IoCommand { q_id: self.queue, tag, result: result.unwrap_or(0), addr: buffer as u64 };
        let entry = opcode::UringCmd80::new(Fd(self.device.as_raw_fd()), number).cmd(in_submission(&command)).build();
        let entry = entry.user_data(tag.into());
        // SAFETY: the caller vouches for the buffer, and the device's descriptor is open as long as this.
        let pushed = unsafe { self.ring.submission().push(&entry) };
        assert!(pushed.is_ok(), "the ring has room for every slot");
    }

    fn submit(&mut self) -> io::Result<()> {
        loop {
            match self.ring.submit() {
                Ok(_) => return Ok(()),
                Err(error) if error.raw_os_error() == Some(libc::EINTR) => {}
                // The kernel is short of memory, or wants completions to be taken first: they are, and it is called
                // again.
                Err(error) if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EBUSY)) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
    }

    fn reap(&mut self, into: &mut Vec<(u16, i32)>) {
        // Requests that have come while the thread was busy here are told by a flag: any system call takes them in.
        let queue = self.ring.submission();
        let asked = queue.taskrun() || queue.cq_overflow() || !queue.is_empty();
        drop(queue);
        if asked {
            // What is wrong with it is found by the next submission.
            let _ = self.ring.submit();
        }
        into.extend(self.ring.completion().map(|entry| (entry.user_data() as u16, entry.result())));
    }

    fn request(&self, tag: u16) -> IoDescriptor {
        assert!(tag < self.depth, "slot {tag} of {}", self.depth);
        // SAFETY: within the mapping, which has a descriptor for each slot. The driver has written it before it
        // completed the command, and does not write it again before the slot is given back.
        unsafe { self.descriptors.base.add(tag.into()).read_volatile() }
    }

    fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the ring keeps its descriptor as long as it lives.
        unsafe { BorrowedFd::borrow_raw(self.ring.as_raw_fd()) }
    }
}
