//! What is in flight, in memory that the front end keeps for the back end: a daemon that was killed finds there what it
//! had taken and not answered (vhost-user.rst, "Inflight I/O tracking", split rings).
//!
//! # Layout of a queue's part, in the machine's order
//! | offset | bytes | |
//! |---|---|---|
//! | 0 | 8 | features: 0 |
//! | 8 | 2 | version: 1 |
//! | 10 | 2 | entries |
//! | 12 | 2 | head of the last batch that was answered |
//! | 14 | 2 | index of the used ring that this speaks of |
//! | 16 | 16 × entries | one for each head: 1 byte in flight, 5 of padding, 2 the next of its batch, 8 a counter |
//!
//! Each part begins at a multiple of 64 bytes.
//!
//! # Invariants
//! - A chain is marked before it is submitted, and unmarked after it was published. A process that is killed leaves
//!   each store that it has made, in their order: so each chain that is not in the used ring is marked, but for a batch
//!   in between, which the index and the list of the batch tell.
//! - The memory is another process's as well: numbers from it are checked, and read once.

use super::memory::check_file;
use super::ring::Broken;
use super::server::Options;
use rustix::fd::OwnedFd;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::sync::atomic::{Ordering, compiler_fence};
use udm_files::ForeignMemory;

const VERSION: u16 = 1;
const HEADER: usize = 16;
const ENTRY: usize = 16;
const ALIGN: usize = 64;

/// Bytes of one queue's part.
pub(super) fn part_bytes(size: u16) -> usize {
    (HEADER + ENTRY * usize::from(size)).next_multiple_of(ALIGN)
}

#[repr(C)]
struct Header {
    features: u64,
    version: u16,
    entries: u16,
    last_batch: u16,
    used_idx: u16,
}

#[repr(C)]
struct Entry {
    inflight: u8,
    padding: [u8; 5],
    next: u16,
    counter: u64,
}

const _: () =
    assert!(size_of::<Header>() == HEADER && size_of::<Entry>() == ENTRY, "as the specification lays them out");

/// Memory for what is in flight, as the front end has described it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct InflightSpec {
    pub(super) bytes: u64,
    pub(super) offset: u64,
    pub(super) queues: u16,
    pub(super) size: u16,
}

pub(super) struct Inflight {
    pub(super) spec: InflightSpec,
    pub(super) file: OwnedFd,
    pub(super) memory: Arc<ForeignMemory>,
}

impl Inflight {
    pub(super) fn map(spec: InflightSpec, file: OwnedFd, options: &Options) -> Result<Self, String> {
        let most = (part_bytes(options.queue_size) * usize::from(options.queues)) as u64;
        if spec.bytes > most {
            return Err(format!("{} bytes for requests in flight; expected at most {most}", spec.bytes));
        }
        check_file(&file)?;
        let memory = ForeignMemory::map(&file, spec.offset, spec.bytes)
            .map_err(|e| format!("the memory of requests in flight cannot be mapped: {e}"))?;
        Ok(Self { spec, file, memory: Arc::new(memory) })
    }
}

/// The part of one queue.
pub(super) struct InflightQueue {
    header: *mut Header,
    entries: *mut Entry,
    size: u16,
    counter: u64,
    last_batch: u16,
    memory: Arc<ForeignMemory>,
}

// SAFETY: the addresses are of the mapping that `memory` keeps, which is Send.
unsafe impl Send for InflightQueue {}

impl InflightQueue {
    /// The part of queue `index` for a ring of `size` entries. A part that was never used is set up; `None` when the
    /// memory has no such part.
    pub(super) fn new(memory: Arc<ForeignMemory>, index: usize, size: u16, part_size: u16) -> Result<Self, Broken> {
        let part = part_bytes(part_size);
        let start =
            index.checked_mul(part).filter(|start| start.checked_add(part).is_some_and(|end| end <= memory.len()));
        let at = start.map(|start| memory.as_ptr().wrapping_add(start));
        let Some(at) = at.filter(|at| (*at as usize).is_multiple_of(ENTRY) && size <= part_size) else {
            let text = format!("the memory of requests in flight has no room for queue {index} with {size} entries");
            return Err(Broken(text));
        };
        let header: *mut Header = at.cast();
        let entries: *mut Entry = at.wrapping_add(HEADER).cast();
        let this = Self { header, entries, size, counter: 0, last_batch: 0, memory };
        // SAFETY: the part lies in the mapping, aligned, checked above; as everywhere below.
        let (version, there) =
            unsafe { ((&raw const (*header).version).read_volatile(), (&raw const (*header).entries).read_volatile()) };
        match (version, there) {
            (0, _) => {
                // SAFETY: as above.
                unsafe {
                    (&raw mut (*header).entries).write_volatile(size);
                    (&raw mut (*header).version).write_volatile(VERSION);
                }
            }
            (VERSION, n) if n == size => {}
            _ => {
                let text = format!(
                    "the memory of requests in flight is of version {version} with {there} entries; expected 1, {size}"
                );
                return Err(Broken(text));
            }
        }
        Ok(this)
    }

    pub(super) fn is_torn(&self) -> bool {
        self.memory.is_torn()
    }

    #[inline(always)]
    fn entry(&self, head: u16) -> *mut Entry {
        assert!(head < self.size, "heads are checked when they are taken");
        self.entries.wrapping_add(usize::from(head))
    }

    /// A chain was taken.
    #[inline(always)]
    pub(super) fn begin(&mut self, head: u16) {
        let entry = self.entry(head);
        // SAFETY: within the mapping.
        unsafe {
            (&raw mut (*entry).counter).write_volatile(self.counter);
            compiler_fence(Ordering::Release);
            (&raw mut (*entry).inflight).write_volatile(1);
        }
        self.counter = self.counter.wrapping_add(1);
    }

    /// A chain belongs to the batch that is published next.
    #[inline(always)]
    pub(super) fn batch(&mut self, head: u16) {
        let entry = self.entry(head);
        // SAFETY: within the mapping.
        unsafe {
            (&raw mut (*entry).next).write_volatile(self.last_batch);
            compiler_fence(Ordering::Release);
            (&raw mut (*self.header).last_batch).write_volatile(head);
        }
        self.last_batch = head;
        compiler_fence(Ordering::Release);
    }

    /// The batch was published; the used ring's index is now `used_idx`.
    #[inline(always)]
    pub(super) fn published(&mut self, heads: &[u16], used_idx: u16) {
        compiler_fence(Ordering::Release);
        for head in heads {
            // SAFETY: within the mapping.
            unsafe { (&raw mut (*self.entry(*head)).inflight).write_volatile(0) };
        }
        compiler_fence(Ordering::Release);
        // SAFETY: within the mapping.
        unsafe { (&raw mut (*self.header).used_idx).write_volatile(used_idx) };
    }

    /// The heads that are to be submitted again, oldest first, when the used ring's index is `used_idx`.
    pub(super) fn recover(&mut self, used_idx: u16) -> Result<Vec<u16>, Broken> {
        // SAFETY: within the mapping, as below.
        let (known, mut head) = unsafe {
            (
                (&raw const (*self.header).used_idx).read_volatile(),
                (&raw const (*self.header).last_batch).read_volatile(),
            )
        };
        // Published, and not unmarked any more. When nothing is marked the ring may be a new one, of a driver that
        // began anew.
        let nothing = self.marked().is_empty();
        let batch = if nothing { 0 } else { used_idx.wrapping_sub(known) };
        if batch > self.size {
            let text =
                format!("the memory of requests in flight speaks of index {known}, the used ring is at {used_idx}");
            return Err(Broken(text));
        }
        for _ in 0..batch {
            if head >= self.size {
                return Err(Broken(format!("descriptor {head} was in flight in a ring of {} entries", self.size)));
            }
            // SAFETY: within the mapping.
            unsafe {
                (&raw mut (*self.entry(head)).inflight).write_volatile(0);
                head = (&raw const (*self.entry(head)).next).read_volatile();
            }
        }
        // SAFETY: within the mapping.
        unsafe { (&raw mut (*self.header).used_idx).write_volatile(used_idx) };
        let mut marked = self.marked();
        marked.sort_unstable();
        self.last_batch = 0;
        self.counter = marked.last().map_or(0, |(counter, _)| counter.wrapping_add(1));
        Ok(marked.into_iter().map(|(_, head)| head).collect())
    }

    /// The counters and heads of what is marked.
    fn marked(&self) -> Vec<(u64, u16)> {
        let marked = (0..self.size).filter_map(|head| {
            let entry = self.entry(head);
            // SAFETY: within the mapping.
            unsafe {
                let marked = (&raw const (*entry).inflight).read_volatile() == 1;
                marked.then(|| ((&raw const (*entry).counter).read_volatile(), head))
            }
        });
        marked.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

    const SIZE: u16 = 8;

    fn memory() -> Arc<ForeignMemory> {
        let fd = memfd_create("udm-test", MemfdFlags::CLOEXEC).unwrap();
        let len = 2 * part_bytes(SIZE) as u64;
        ftruncate(&fd, len).unwrap();
        Arc::new(ForeignMemory::map(fd, 0, len).unwrap())
    }

    fn queue(memory: &Arc<ForeignMemory>) -> InflightQueue {
        InflightQueue::new(memory.clone(), 1, SIZE, SIZE).unwrap()
    }

    /// Killed after each step of a batch: what was not published is found again, oldest first, and nothing else.
    #[test]
    fn killed_at_every_step() {
        for step in 0..4 {
            let memory = memory();
            let mut q = queue(&memory);
            assert_eq!(q.recover(0), Ok(vec![]));
            [5, 2, 7, 0].into_iter().for_each(|head| q.begin(head));
            q.batch(5);
            q.published(&[5], 1);
            let mut used = 1;
            if step > 0 {
                q.batch(7);
                q.batch(2);
            }
            if step > 1 {
                used = 3;
            }
            if step > 2 {
                q.published(&[7, 2], 3);
            }
            let again = queue(&memory).recover(used).unwrap();
            assert_eq!(again, if step > 1 { vec![0] } else { vec![2, 7, 0] }, "step {step}");
            // Killed once more, before anything happened.
            assert_eq!(queue(&memory).recover(used).unwrap(), again);
        }
    }

    #[test]
    fn nonsense() {
        let memory = memory();
        let part = |index, size| InflightQueue::new(memory.clone(), index, size, SIZE).is_ok();
        assert!(part(0, SIZE) && part(1, SIZE));
        assert!(!part(2, SIZE) && !part(usize::MAX, SIZE) && !part(0, 16) && !part(0, 4));
        assert_eq!(queue(&memory).recover(SIZE + 1), Ok(vec![]), "a new ring, and nothing in flight");
        assert_eq!(queue(&memory).recover(0), Ok(vec![]));
        let mut q = queue(&memory);
        q.begin(3);
        assert!(queue(&memory).recover(SIZE + 1).is_err(), "a batch of more than there is");
        q.batch(3);
        // SAFETY: within the mapping.
        unsafe { (&raw mut (*q.entry(3)).next).write_volatile(999) };
        assert!(queue(&memory).recover(2).is_err(), "a list that leads out");
        // SAFETY: within the mapping.
        unsafe { (&raw mut (*q.header).version).write_volatile(9) };
        assert!(InflightQueue::new(memory.clone(), 1, SIZE, SIZE).is_err());
    }
}
