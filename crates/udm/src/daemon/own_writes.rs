//! Memory for a daemon that the kernel writes through.
//!
//! The kernel may have to write pages of a file system on a node to get memory, and the node is this process. A thread
//! here that asks for memory must then not wait for such a page, or it waits for itself. Where that happens (Linux
//! 6.12, `mm/vmscan.c`, `shrink_folio_list`): a process that touches memory for the first time, in a memory cgroup of
//! version 1 that is at its limit, waits for pages under writeback in `folio_wait_writeback`. Cgroups of version 2, and
//! machines that are short of memory as a whole, go on to other pages.
//!
//! - Where PR_SET_IO_FLUSHER is allowed (CAP_SYS_RESOURCE), threads that have it never wait so.
//! - Elsewhere no memory is touched for the first time while requests are served: the program is read in at the start,
//!   stacks are touched as threads begin, and the heap is one, is never given back, and is made as large as requests of
//!   nodes need before there is a block device.
//!
//! What is left: a heap that outgrows that, and what the kernel allocates for this process by itself (requests of
//! io_uring).

use rustix::mm::{MlockAllFlags, mlockall};
use std::hint::black_box;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use tracing::info;
use udm_io::{Domain, DomainBuilder, Executor, Joiner, ThreadExecutor};

/// Whether memory is to be touched ahead: set once, before there are threads.
static AHEAD: AtomicBool = AtomicBool::new(false);
/// Bytes of the heap that have been, for data.
static RESERVED: AtomicUsize = AtomicUsize::new(0);
/// It grows by so much at a time: each node wants a little more.
const STEP: usize = 16 << 20;
/// What a thread may need of its stack, of 2 MiB.
const STACK: usize = 256 << 10;
/// What requests of nodes may need beside their data, and pools for their metadata.
const HEAP: usize = 8 << 20;
/// Of one allocation; larger ones would be mappings of their own.
const PIECE: usize = 1 << 20;

/// To be called before any other thread is started: they inherit what is set here. Only root has block devices that the
/// kernel writes to, so for others nothing is done.
pub(super) fn keep_clear() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    if let Err(error) = rustix::process::configure_io_flusher_behavior(true) {
        info!("PR_SET_IO_FLUSHER is refused, so that memory for nodes' requests is set aside: {error}");
        AHEAD.store(true, Ordering::Relaxed);
        keep_heap();
    }
    // What is mapped now, the program; not the memory and the files of devices, which may be larger than the machine's.
    if let Err(error) = mlockall(MlockAllFlags::CURRENT) {
        info!("the program's memory cannot be locked: {error}");
    }
}

/// Whether memory must be touched ahead. Rings of FUSE have buffers of their own that are not.
pub(super) fn is_needed() -> bool {
    AHEAD.load(Ordering::Relaxed)
}

/// One heap for all threads, which never shrinks, and which large buffers come from as well.
#[cfg(target_env = "gnu")]
fn keep_heap() {
    for (what, value) in
        [(libc::M_ARENA_MAX, 1), (libc::M_TRIM_THRESHOLD, i32::MAX), (libc::M_MMAP_THRESHOLD, 32 << 20)]
    {
        // SAFETY: it takes numbers, and sets what later allocations do.
        unsafe { libc::mallopt(what, value) };
    }
}

#[cfg(not(target_env = "gnu"))]
fn keep_heap() {}

/// A domain whose threads have touched their stacks, where that is needed.
pub(super) fn domain() -> Domain {
    DomainBuilder::default().executor(executor()).build()
}

/// What starts such threads.
pub(super) fn executor() -> Arc<dyn Executor> {
    Arc::new(Ahead)
}

/// Sets memory aside for nodes' requests with `data` bytes of data under way, if there is not as much. Blocks, for as
/// long as touching takes.
pub(super) fn reserve(data: usize) {
    let data = data.next_multiple_of(STEP);
    if !AHEAD.load(Ordering::Relaxed) || RESERVED.fetch_max(data, Ordering::Relaxed) >= data {
        return;
    }
    let pieces: Vec<Vec<u8>> = (0..(HEAP + data).div_ceil(PIECE)).map(|_| vec![1; PIECE]).collect();
    // It goes back to the heap, which keeps it.
    drop(black_box(pieces));
}

/// Threads of the operating system.
struct Ahead;

impl Executor for Ahead {
    fn spawn(&self, name: &str, work: Box<dyn FnOnce() + Send>) -> io::Result<Joiner> {
        let begin = move || {
            if AHEAD.load(Ordering::Relaxed) {
                touch_stack();
            }
            work();
        };
        ThreadExecutor.spawn(name, Box::new(begin))
    }
}

#[inline(never)]
fn touch_stack() {
    black_box(&mut [1u8; STACK]);
}
