//! A worker's memory: receive chunks and payload buffers, used again and again.
//!
//! All of it is mapped, beside the heap, so that what clients needed can be given back however the heap is kept.
//! Buffers are cut from slabs; what was not used for some time goes, slab by slab.

use super::budget::Budget;
use std::ptr::NonNull;
use std::rc::Rc;

/// Bytes of a receive chunk: what one receive takes in at most.
pub(super) const CHUNK: usize = 256 * 1024;
/// Bytes of free buffers that a worker keeps for later.
const KEEP: usize = 8 * 1024 * 1024;
/// Idle chunks that it keeps.
const KEEP_CHUNKS: usize = 8;
/// Chunks in use from which on receives are small.
const CROWD: usize = 64;
/// The smallest buffer.
const SMALLEST: usize = 4096;
/// Sizes of buffers: 4 KiB to 1 MiB by powers of two.
const CLASSES: usize = 9;
/// Bytes of a slab, but for those of larger buffers, which have one each.
const SLAB: usize = 256 * 1024;

/// Anonymous memory of its own.
struct Mapping {
    ptr: NonNull<u8>,
    len: usize,
}

impl Mapping {
    fn new(len: usize) -> Self {
        use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
        // SAFETY: a new mapping, where the system likes.
        let ptr =
            unsafe { mmap_anonymous(std::ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE) };
        let ptr = ptr.ok().and_then(|ptr| NonNull::new(ptr.cast()));
        let layout = std::alloc::Layout::from_size_align(len, SMALLEST).expect("a length of this file");
        // As any allocation that fails.
        let ptr = ptr.unwrap_or_else(|| std::alloc::handle_alloc_error(layout));
        Self { ptr, len }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped in `new` with this length; who refers to it holds the mapping.
        let _ = unsafe { rustix::mm::munmap(self.ptr.as_ptr().cast(), self.len) };
    }
}

/// Where a buffer lies: the number of its slab, and its own there.
#[derive(Clone, Copy)]
struct Place {
    slab: u32,
    index: u8,
}

/// A buffer for one payload, on a page border.
pub(super) struct Buf {
    /// Its slab, which it keeps.
    memory: Rc<Mapping>,
    class: u8,
    place: Place,
}

impl Buf {
    /// Bytes that it holds, at least those asked for.
    pub(super) fn capacity(&self) -> usize {
        SMALLEST << self.class
    }

    /// Where it is; stays the same while it lives.
    pub(super) fn as_ptr(&self) -> *mut u8 {
        self.memory.ptr.as_ptr().wrapping_add(usize::from(self.place.index) << self.class << SMALLEST.trailing_zeros())
    }
}

impl std::ops::Deref for Buf {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: a slab has room for as many buffers as it has places, each of which one buffer has at a time; it is
        // mapped while a buffer holds it, and zeroed at first.
        unsafe { std::slice::from_raw_parts(self.as_ptr(), self.capacity()) }
    }
}

impl std::ops::DerefMut for Buf {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as for `deref`, and the borrow is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.as_ptr(), self.capacity()) }
    }
}

/// The number of a chunk in its pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ChunkId(u32);

/// A receive chunk: filled from the front, and empty again when its last user has left. What has been filled does not
/// change while it has users; what has not is nobody's.
struct Chunk {
    memory: Option<Mapping>,
    filled: usize,
    users: u32,
}

/// The memory of one worker.
#[derive(Default)]
pub(super) struct Pool {
    /// What is out, and may be.
    pub(super) budget: Budget,
    slabs: Vec<Option<Rc<Mapping>>>,
    /// Numbers that no slab has.
    spare: Vec<u32>,
    free: [Vec<Place>; CLASSES],
    /// Bytes of free buffers, and the least that it was since it was looked at last.
    kept: usize,
    least: usize,
    out: usize,
    chunks: Vec<Chunk>,
    /// The chunk that is received into.
    open: Option<ChunkId>,
    /// Chunks without users, other than the open one; those that have memory last.
    idle: Vec<ChunkId>,
    /// Idle chunks that have memory, and the least that there were.
    idle_kept: usize,
    idle_least: usize,
}

impl Pool {
    /// Bytes of buffers that are in use.
    pub(super) fn in_use(&self) -> usize {
        self.out
    }

    /// The size of the buffer that `take(len)` gives.
    pub(super) fn size_for(len: usize) -> usize {
        len.max(SMALLEST).next_power_of_two()
    }

    /// Memory of which so much may be out.
    pub(super) fn new(budget: Budget) -> Self {
        Self { budget, ..Self::default() }
    }

    /// A buffer of at least `len` bytes; what they hold is not defined. Maps memory when none of the size is kept.
    ///
    /// # Panics
    /// When `len` is more than 1 MiB. Longer payloads come in pieces.
    pub(super) fn take(&mut self, len: usize) -> Buf {
        self.budget.take(Self::size_for(len));
        self.take_counted(len)
    }

    /// As [`take`](Self::take), when the budget counts it already.
    pub(super) fn take_counted(&mut self, len: usize) -> Buf {
        let class = (Self::size_for(len) / SMALLEST).trailing_zeros() as usize;
        let size = SMALLEST << class;
        if self.free[class].is_empty() {
            self.add_slab(class);
        }
        let place = self.free[class].pop().expect("a slab has buffers");
        let memory = self.slabs[place.slab as usize].clone().expect("what is free lies in a slab");
        self.out += size;
        self.kept -= size;
        self.least = self.least.min(self.kept);
        Buf { memory, class: class as u8, place }
    }

    fn add_slab(&mut self, class: usize) {
        let size = SMALLEST << class;
        let len = SLAB.max(size);
        let slab = self.spare.pop().unwrap_or_else(|| {
            self.slabs.push(None);
            (self.slabs.len() - 1) as u32
        });
        self.slabs[slab as usize] = Some(Rc::new(Mapping::new(len)));
        // At most 64 in a slab.
        self.free[class].extend((0..len / size).rev().map(|index| Place { slab, index: index as u8 }));
        self.kept += len;
    }

    /// Takes a buffer back. Last in is first out: its lines are still in the cache.
    pub(super) fn give(&mut self, buf: Buf) {
        let size = buf.capacity();
        self.budget.give(size);
        self.out -= size;
        self.kept += size;
        self.free[usize::from(buf.class)].push(buf.place);
    }

    /// Whether memory is kept that nobody uses.
    pub(super) fn is_warm(&self) -> bool {
        let open = self.open.is_some_and(|id| self.chunk(id).users == 0);
        self.kept > 0 || self.idle_kept > 0 || open
    }

    /// Frees what nobody uses.
    pub(super) fn trim(&mut self) {
        self.unmap(usize::MAX);
        if let Some(id) = self.open.take_if(|id| self.chunks[id.0 as usize].users == 0) {
            self.idle.push(id);
            self.idle_kept += 1;
        }
        self.unmap_chunks(usize::MAX);
    }

    /// Frees what nobody has used since the last call, but for some. To be called now and then.
    pub(super) fn settle(&mut self) {
        self.unmap(self.least.saturating_sub(KEEP));
        self.unmap_chunks(self.idle_least.saturating_sub(KEEP_CHUNKS));
        self.least = self.kept;
        self.idle_least = self.idle_kept;
    }

    /// Unmaps slabs of which no buffer is out, `most` bytes of them.
    fn unmap(&mut self, most: usize) {
        let mut freed = 0;
        for (slab, number) in self.slabs.iter_mut().zip(0..) {
            let unused = slab.as_ref().filter(|slab| Rc::strong_count(slab) == 1).map(|slab| slab.len);
            if let Some(len) = unused.filter(|len| freed + len <= most) {
                freed += len;
                *slab = None;
                self.spare.push(number);
            }
        }
        if freed > 0 {
            self.kept -= freed;
            let slabs = &self.slabs;
            self.free.iter_mut().for_each(|free| free.retain(|place| slabs[place.slab as usize].is_some()));
        }
    }

    fn unmap_chunks(&mut self, most: usize) {
        let many = most.min(self.idle_kept);
        let from = self.idle.len() - self.idle_kept;
        for id in &self.idle[from..from + many] {
            self.chunks[id.0 as usize].memory = None;
        }
        self.idle_kept -= many;
    }

    /// Bytes that are mapped.
    #[cfg(test)]
    fn mapped(&self) -> usize {
        let chunks = self.chunks.iter().filter_map(|chunk| chunk.memory.as_ref());
        self.slabs.iter().flatten().map(|slab| slab.len).sum::<usize>() + chunks.map(|memory| memory.len).sum::<usize>()
    }

    fn chunk(&self, id: ChunkId) -> &Chunk {
        &self.chunks[id.0 as usize]
    }

    fn memory(&self, id: ChunkId) -> &Mapping {
        self.chunk(id).memory.as_ref().expect("a chunk that is open or used has memory")
    }

    /// Chunks that somebody refers to.
    pub(super) fn chunks_in_use(&self) -> usize {
        self.chunks.len() - self.idle.len()
    }

    /// Whether many chunks are in use: others should be filled well before the next is taken.
    pub(super) fn is_crowded(&self) -> bool {
        self.chunks_in_use() > CROWD
    }

    /// The chunk to receive into; at least `room` bytes of it, at most [`CHUNK`], are free. Until
    /// [`use_chunk`](Self::use_chunk) nobody refers to it.
    pub(super) fn open_chunk(&mut self, room: usize) -> ChunkId {
        if let Some(id) = self.open.filter(|id| CHUNK - self.chunk(*id).filled >= room) {
            return id;
        }
        // A chunk that is left full has users, the last of whom makes it idle: it would be empty otherwise.
        let id = self.idle.pop().unwrap_or_else(|| {
            self.chunks.push(Chunk { memory: None, filled: 0, users: 0 });
            ChunkId((self.chunks.len() - 1) as u32)
        });
        self.idle_kept = self.idle_kept.saturating_sub(1);
        self.idle_least = self.idle_least.min(self.idle_kept);
        self.chunks[id.0 as usize].memory.get_or_insert_with(|| Mapping::new(CHUNK));
        self.open = Some(id);
        id
    }

    /// What is free of the open chunk.
    pub(super) fn room(&mut self, id: ChunkId) -> &mut [u8] {
        let filled = self.chunk(id).filled;
        // SAFETY: `filled` is at most CHUNK, the length of the memory. Bios and slices refer only to what has been
        // filled, and `self` is borrowed for as long as this slice lives.
        unsafe { std::slice::from_raw_parts_mut(self.memory(id).ptr.as_ptr().add(filled), CHUNK - filled) }
    }

    /// Says that the first `len` bytes of the room are filled. Returns where they lie.
    pub(super) fn fill(&mut self, id: ChunkId, len: usize) -> std::ops::Range<usize> {
        let chunk = &mut self.chunks[id.0 as usize];
        let start = chunk.filled;
        assert!(len <= CHUNK - start, "a receive stays within its chunk");
        chunk.filled = start + len;
        start..start + len
    }

    /// One more user of what has been filled.
    pub(super) fn use_chunk(&mut self, id: ChunkId) {
        self.chunks[id.0 as usize].users += 1;
    }

    /// One user less; with the last the chunk is empty again.
    pub(super) fn leave_chunk(&mut self, id: ChunkId) {
        let chunk = &mut self.chunks[id.0 as usize];
        chunk.users -= 1;
        if chunk.users == 0 {
            chunk.filled = 0;
            if self.open != Some(id) {
                self.idle.push(id);
                self.idle_kept += 1;
            }
        }
    }

    /// Filled bytes of a chunk that has users.
    pub(super) fn filled(&self, id: ChunkId, range: std::ops::Range<usize>) -> &[u8] {
        assert!(range.start <= range.end && range.end <= self.chunk(id).filled, "only what has been filled is read");
        // SAFETY: within the memory, and filled bytes do not change while the chunk has users.
        unsafe { std::slice::from_raw_parts(self.memory(id).ptr.as_ptr().add(range.start), range.len()) }
    }

    /// Where filled bytes lie, for a bio; they stay while the chunk has users.
    pub(super) fn filled_ptr(&self, id: ChunkId, range: std::ops::Range<usize>) -> *mut u8 {
        self.filled(id, range.clone());
        self.memory(id).ptr.as_ptr().wrapping_add(range.start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_used_again_and_apart() {
        let mut pool = Pool::default();
        let mut all: Vec<_> = [1, 4096, 4097, 1 << 20].into_iter().map(|len| pool.take(len)).collect();
        assert_eq!(all.iter().map(Buf::capacity).collect::<Vec<_>>(), [4096, 4096, 8192, 1 << 20]);
        assert_eq!(pool.in_use(), 4096 * 4 + (1 << 20));
        all.iter_mut().zip(1..).for_each(|(buf, n)| buf.fill(n));
        assert!(all.iter().zip(1..).all(|(buf, n)| buf.iter().all(|byte| *byte == n)));
        let last = all[3].as_ptr();
        all.into_iter().for_each(|buf| pool.give(buf));
        assert_eq!(pool.in_use(), 0);
        let again = pool.take(1 << 20);
        assert_eq!(again.as_ptr(), last);
        pool.give(again);
        pool.trim();
        assert!(!pool.is_warm());
        assert_eq!(pool.mapped(), 0);
    }

    /// What many clients needed once goes when they have gone, while others go on; what is used all the time stays.
    #[test]
    fn what_is_not_used_any_more_is_given_back() {
        let mut pool = Pool::default();
        let held = pool.take(4096);
        let much: Vec<_> = (0..2000).map(|i| pool.take([4096, 1 << 20][i % 2])).collect();
        let chunks: Vec<_> = (0..100)
            .map(|_| {
                let id = pool.open_chunk(CHUNK);
                pool.use_chunk(id);
                pool.fill(id, 1);
                id
            })
            .collect();
        assert!(pool.mapped() > 1 << 30);
        much.into_iter().for_each(|buf| pool.give(buf));
        chunks.into_iter().for_each(|id| pool.leave_chunk(id));
        // What was in use a moment ago may be wanted again.
        pool.settle();
        assert!(pool.mapped() > 1 << 30);
        for _ in 0..3 {
            let some: Vec<_> = (0..20).map(|_| pool.take(1 << 20)).collect();
            some.into_iter().for_each(|buf| pool.give(buf));
            pool.settle();
        }
        let left = pool.mapped();
        assert!((20 << 20..40 << 20).contains(&left), "{left} bytes are mapped");
        pool.settle();
        pool.give(held);
        pool.settle();
        assert!(pool.mapped() <= KEEP + SLAB + (KEEP_CHUNKS + 1) * CHUNK, "{} bytes are mapped", pool.mapped());
        pool.trim();
        assert_eq!(pool.mapped(), 0);
    }

    #[test]
    fn a_chunk_is_empty_again_when_its_last_user_has_left() {
        let mut pool = Pool::default();
        let a = pool.open_chunk(CHUNK);
        pool.use_chunk(a);
        pool.room(a)[..5].copy_from_slice(b"hello");
        let range = pool.fill(a, 5);
        assert_eq!(pool.filled(a, range.clone()), b"hello");
        assert_eq!(pool.open_chunk(CHUNK - 5), a);
        pool.use_chunk(a);
        assert_eq!(pool.room(a).len(), CHUNK - 5);

        let b = pool.open_chunk(CHUNK - 4);
        assert_ne!(a, b);
        assert_eq!(pool.chunks_in_use(), 2);
        assert_eq!(pool.filled(a, range), b"hello");
        pool.leave_chunk(a);
        assert_eq!(pool.chunks_in_use(), 2);
        pool.leave_chunk(a);
        assert_eq!(pool.chunks_in_use(), 1);
        pool.use_chunk(b);
        pool.fill(b, 1);
        assert_eq!(pool.open_chunk(CHUNK), a);
        pool.leave_chunk(b);
        pool.trim();
        assert!(!pool.is_warm());
    }
}
