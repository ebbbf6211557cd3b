//! Queues: one thread's way to one device.

use crate::error::{Failure, answer, ended};
use crate::stack::UdmStack;
use libc::iovec;
use std::ffi::{c_char, c_int, c_uint};
use std::time::Duration;
use udm_base::{Errno, SECTOR_SIZE, Sector, Sectors};
use udm_core::OpenDevice;
use udm_io::{Attached, Channel, Completion, Nanos, Op, OpFlags, Segment};

/// As many requests as a queue can have out at a time.
const MAX_DEPTH: c_uint = 65536;

/// A thread's way to a device.
pub struct UdmQueue {
    channel: Channel,
    dev: Attached,
    /// So that no command removes it meanwhile.
    _open: OpenDevice,
}

/// An operation: reads into the memory.
pub const UDM_READ: u32 = 0;
/// An operation: writes the memory.
pub const UDM_WRITE: u32 = 1;
/// An operation: what completed before is durable when it completes; offset and length are 0.
pub const UDM_FLUSH: u32 = 2;
/// An operation: nobody needs what is there.
pub const UDM_DISCARD: u32 = 3;
/// An operation: writes zeroes.
pub const UDM_WRITE_ZEROES: u32 = 4;

/// A flag of a write: durable when it completes.
pub const UDM_FUA: u32 = 1;
/// A flag: polled, completes when udm_queue_poll or udm_queue_wait asks; as others where the device cannot.
pub const UDM_HIPRI: u32 = 2;
/// A flag of zeroes: stay allocated.
pub const UDM_NO_UNMAP: u32 = 4;

/// A request.
#[repr(C)]
pub struct UdmRequest {
    /// UDM_READ and the others.
    pub op: u32,
    /// UDM_FUA and the others.
    pub flags: u32,
    /// In bytes; a multiple of 512.
    pub offset: u64,
    /// In bytes; a multiple of 512.
    pub length: u64,
    /// Reads and writes: memory of `length` bytes. It stays until the completion has been taken; so does the list when
    /// it has more than one entry.
    pub iov: *const iovec,
    /// Entries of the list.
    pub iovcnt: u32,
    /// 0.
    pub reserved: u32,
    /// Comes back with the completion.
    pub token: u64,
}

/// A request that has ended.
#[repr(C)]
pub struct UdmCompletion {
    /// The request's.
    pub token: u64,
    /// 0, or an errno negated.
    pub result: i32,
    /// 0.
    pub reserved: u32,
}

/// A timeout that never comes.
pub const UDM_FOREVER: u64 = u64::MAX;

// An iovec is a segment: the caller's list goes down without a copy.
const _: () = assert!(
    size_of::<Segment>() == size_of::<iovec>()
        && std::mem::offset_of!(iovec, iov_base) == 0
        && std::mem::offset_of!(iovec, iov_len) == size_of::<usize>()
);

impl UdmRequest {
    fn op(&self) -> Result<Op, Failure> {
        match self.op {
            UDM_READ => Ok(Op::Read),
            UDM_WRITE => Ok(Op::Write),
            UDM_FLUSH => Ok(Op::Flush),
            UDM_DISCARD => Ok(Op::Discard),
            UDM_WRITE_ZEROES => Ok(Op::WriteZeroes),
            other => Err(Failure::new(Errno::EINVAL, format!("operation {other}: expected 0 to 4"))),
        }
    }

    fn op_flags(&self) -> Result<OpFlags, Failure> {
        let unknown = self.flags & !(UDM_FUA | UDM_HIPRI | UDM_NO_UNMAP);
        if unknown != 0 {
            return Err(Failure::new(Errno::EINVAL, format!("flags {unknown:#x} are none; expected 1, 2 and 4")));
        }
        let flag = |bit, flag| if self.flags & bit != 0 { flag } else { OpFlags::NONE };
        Ok(flag(UDM_FUA, OpFlags::FUA)
            .with(flag(UDM_HIPRI, OpFlags::HIPRI))
            .with(flag(UDM_NO_UNMAP, OpFlags::NO_UNMAP)))
    }

    fn range(&self) -> Result<(Sector, Sectors), Failure> {
        let unit = SECTOR_SIZE as u64;
        if !self.offset.is_multiple_of(unit) || !self.length.is_multiple_of(unit) {
            let text = format!("bytes {} and {} from there: expected multiples of {unit}", self.offset, self.length);
            return Err(Failure::new(Errno::EINVAL, text));
        }
        Ok((Sector::containing(self.offset), Sectors::in_bytes(self.length)))
    }
}

impl UdmQueue {
    /// # Safety
    /// The request's list and memory are as the header demands.
    unsafe fn submit(&self, request: &UdmRequest) -> Result<c_int, Failure> {
        let (op, flags, (sector, sectors)) = (request.op()?, request.op_flags()?, request.range()?);
        let taken = if !op.has_payload() {
            self.channel.submit_range(self.dev, op, flags, sector, sectors, request.token)
        } else if request.iov.is_null() || request.iovcnt == 0 {
            return Err(Failure::null("the request's memory"));
        } else if request.iovcnt == 1 {
            // SAFETY: a list of one, by the caller's promise.
            let iovec { iov_base, iov_len } = unsafe { *request.iov };
            if iov_base.is_null() || iov_len as u64 != request.length {
                let text = format!("{iov_len} bytes of memory for a request of {}", request.length);
                return Err(Failure::new(Errno::EINVAL, text));
            }
            // SAFETY: the caller lends the memory until the completion.
            let memory = unsafe { std::slice::from_raw_parts_mut(iov_base.cast::<u8>(), iov_len) };
            // SAFETY: as above.
            unsafe { self.channel.submit(self.dev, op, flags, sector, memory, request.token) }
        } else {
            // SAFETY: the caller's list stays until the completion, and has the layout of segments.
            let segs = unsafe { std::slice::from_raw_parts(request.iov.cast::<Segment>(), request.iovcnt as usize) };
            // SAFETY: as above.
            unsafe { self.channel.submit_vectored(self.dev, op, flags, sector, sectors, segs, request.token) }
        };
        if taken { Ok(0) } else { Err(Failure::new(Errno::EAGAIN, "as many requests are out as the queue is deep")) }
    }

    /// Takes what has ended, at most `max`.
    ///
    /// # Safety
    /// `out` has room for `max`.
    unsafe fn take(&self, out: *mut UdmCompletion, max: usize) -> usize {
        for at in 0..max {
            let Some(Completion { token, status }) = self.channel.completed() else { return at };
            // SAFETY: at < max.
            unsafe { out.add(at).write(UdmCompletion { token, result: ended(status), reserved: 0 }) };
        }
        max
    }
}

/// A way to a device for this thread, with at most `depth` (1 to 65536) requests out. Null names the last device. A
/// process has at most 256 queues at a time.
///
/// # Safety
/// `stack` is open and stays so longer than the queue; `device` is null or leads to a text that ends with a zero,
/// `queue` to a pointer. Null is refused for the others.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn udm_queue_open(
    stack: *const UdmStack,
    device: *const c_char,
    depth: c_uint,
    queue: *mut *mut UdmQueue,
) -> c_int {
    answer((|| {
        // SAFETY: the caller's promise.
        let stack = unsafe { stack.as_ref() }.ok_or_else(|| Failure::null("the stack"))?;
        if queue.is_null() {
            return Err(Failure::null("where the queue goes"));
        }
        if !(1..=MAX_DEPTH).contains(&depth) {
            return Err(Failure::new(Errno::EINVAL, format!("a depth of {depth}: expected 1 to {MAX_DEPTH}")));
        }
        // SAFETY: the caller's promise.
        let device = unsafe { stack.device(device) }?;
        let open = device.open().map_err(|e| Failure::new(e.errno, e.message))?;
        let channel = stack.domain.channel()?;
        channel.set_depth(depth as usize);
        let dev = channel.attach(device);
        // SAFETY: not null, and the caller's promise.
        unsafe { *queue = Box::into_raw(Box::new(UdmQueue { channel, dev, _open: open })) };
        Ok(0)
    })())
}

/// Every request must have completed. Null is allowed.
///
/// # Safety
/// `queue` comes from `udm_queue_open` on this thread and is closed once, with nothing out; or it is null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn udm_queue_close(queue: *mut UdmQueue) {
    if !queue.is_null() {
        // SAFETY: the caller's promise.
        drop(unsafe { Box::from_raw(queue) });
    }
}

/// Submits a request; the struct itself may go at once. -EAGAIN when as many are out as the queue is deep: poll first.
/// A request that the device refuses completes with an error. Never blocks.
///
/// # Safety
/// `queue` is this thread's; `request` leads to one whose list and memory stay until its completion has been taken.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn udm_queue_submit(queue: *mut UdmQueue, request: *const UdmRequest) -> c_int {
    // SAFETY: the caller's promise.
    let (queue, request) = unsafe { (queue.as_ref(), request.as_ref()) };
    let (Some(queue), Some(request)) = (queue, request) else {
        return answer(Err(Failure::null("the queue or the request")));
    };
    // SAFETY: the caller's promise.
    answer(unsafe { queue.submit(request) })
}

/// Starts what is queued and takes at most `max` completions. Never blocks.
///
/// # Safety
/// `queue` is this thread's; `out` has room for `max`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn udm_queue_poll(queue: *mut UdmQueue, out: *mut UdmCompletion, max: c_uint) -> c_int {
    // SAFETY: the caller's promise.
    let Some(queue) = (unsafe { queue.as_ref() }).filter(|_| !out.is_null()) else {
        return answer(Err(Failure::null("the queue, or where the completions go")));
    };
    let max = max.min(c_int::MAX as c_uint) as usize;
    // What ended at its submission needs no poll.
    // SAFETY: the caller's promise.
    let there = unsafe { queue.take(out, max) };
    if there > 0 {
        return there as c_int;
    }
    queue.channel.poll();
    // SAFETY: as above.
    unsafe { queue.take(out, max) as c_int }
}

/// As udm_queue_poll, but sleeps (while polled requests are out: polls) until `min` have completed, nothing is out, or
/// `timeout_ns` have passed. Returns how many there are, which may be fewer than `min`.
///
/// # Safety
/// `queue` is this thread's; `out` has room for `max`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn udm_queue_wait(
    queue: *mut UdmQueue,
    out: *mut UdmCompletion,
    min: c_uint,
    max: c_uint,
    timeout_ns: u64,
) -> c_int {
    // SAFETY: the caller's promise.
    let Some(waited) = (unsafe { queue.as_ref() }).filter(|_| !out.is_null()) else {
        return answer(Err(Failure::null("the queue, or where the completions go")));
    };
    let max = max.min(c_int::MAX as c_uint);
    let min = min.min(max) as usize;
    let forever = timeout_ns == UDM_FOREVER;
    let start = waited.channel.now();
    let mut there = 0;
    loop {
        // SAFETY: room for `max`, of which `there` are used.
        let more = unsafe { udm_queue_poll(queue, out.add(there), max - there as c_uint) };
        if more < 0 {
            return more;
        }
        there += more as usize;
        let spent = since(start, waited.channel.now());
        if there >= min || waited.channel.outstanding() == 0 || (!forever && spent >= timeout_ns) {
            return there as c_int;
        }
        if more > 0 {
            continue;
        }
        if waited.channel.is_polled() {
            // The next look is the wait.
            continue;
        }
        let left = (!forever).then(|| Duration::from_nanos(timeout_ns - spent));
        if let Err(e) = waited.channel.wait(left, &mut Vec::new()) {
            // What has been taken already must not be lost by an error.
            return if there > 0 { there as c_int } else { answer(Err(e.into())) };
        }
    }
}

fn since(start: Nanos, now: Nanos) -> u64 {
    now.0.saturating_sub(start.0)
}
