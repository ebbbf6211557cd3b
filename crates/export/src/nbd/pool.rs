//! A worker's memory: receive chunks and payload buffers, used again and again.

use udm_base::AlignedBuf;

/// Bytes of a receive chunk: what one receive takes in at most.
pub(super) const CHUNK: usize = 256 * 1024;
/// Bytes of free buffers that a worker keeps for later.
const KEEP: usize = 8 * 1024 * 1024;
/// The smallest buffer.
const SMALLEST: usize = 4096;
/// Sizes of buffers: 4 KiB to 32 MiB by powers of two.
const CLASSES: usize = 14;

/// A buffer for one payload, on a page border.
pub(super) struct Buf {
    memory: AlignedBuf,
    class: u8,
}

impl Buf {
    /// Bytes that it holds, at least those asked for.
    pub(super) fn capacity(&self) -> usize {
        SMALLEST << self.class
    }

    /// Where it is; stays the same while it lives.
    pub(super) fn as_ptr(&self) -> *mut u8 {
        self.memory.as_ptr()
    }
}

impl std::ops::Deref for Buf {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.memory
    }
}

impl std::ops::DerefMut for Buf {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.memory
    }
}

/// The number of a chunk in its pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ChunkId(u32);

/// A receive chunk: filled from the front, and empty again when its last user has left. What has been filled does not
/// change while it has users; what has not is nobody's.
struct Chunk {
    memory: Option<AlignedBuf>,
    filled: usize,
    users: u32,
}

/// The memory of one worker.
#[derive(Default)]
pub(super) struct Pool {
    free: [Vec<Buf>; CLASSES],
    kept: usize,
    out: usize,
    chunks: Vec<Chunk>,
    /// The chunk that is received into.
    open: Option<ChunkId>,
    /// Chunks without users, other than the open one.
    idle: Vec<ChunkId>,
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

    /// A buffer of at least `len` bytes; what they hold is not defined. Allocates when none of the size is kept.
    ///
    /// # Panics
    /// When `len` is more than 32 MiB. Callers have checked it against the maximum payload.
    pub(super) fn take(&mut self, len: usize) -> Buf {
        let class = (Self::size_for(len) / SMALLEST).trailing_zeros() as usize;
        let size = SMALLEST << class;
        self.out += size;
        match self.free[class].pop() {
            Some(buf) => {
                self.kept -= size;
                buf
            }
            None => Buf { memory: AlignedBuf::zeroed(size), class: class as u8 },
        }
    }

    /// Takes a buffer back. Last in is first out: its lines are still in the cache.
    pub(super) fn give(&mut self, buf: Buf) {
        let size = buf.capacity();
        self.out -= size;
        if self.kept + size <= KEEP {
            self.kept += size;
            self.free[usize::from(buf.class)].push(buf);
        }
    }

    /// Whether memory is kept that nobody uses.
    pub(super) fn is_warm(&self) -> bool {
        let idle = |id: &ChunkId| self.chunk(*id).users == 0 && self.chunk(*id).memory.is_some();
        self.kept > 0 || self.idle.iter().chain(&self.open).any(idle)
    }

    /// Frees what nobody uses.
    pub(super) fn trim(&mut self) {
        self.free = Default::default();
        self.kept = 0;
        let unused = self.open.take_if(|id| self.chunks[id.0 as usize].users == 0);
        self.idle.extend(unused);
        for id in &self.idle {
            self.chunks[id.0 as usize].memory = None;
        }
    }

    fn chunk(&self, id: ChunkId) -> &Chunk {
        &self.chunks[id.0 as usize]
    }

    fn memory(&self, id: ChunkId) -> &AlignedBuf {
        self.chunk(id).memory.as_ref().expect("a chunk that is open or used has memory")
    }

    /// Chunks that somebody refers to.
    pub(super) fn chunks_in_use(&self) -> usize {
        self.chunks.len() - self.idle.len()
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
        self.chunks[id.0 as usize].memory.get_or_insert_with(|| AlignedBuf::zeroed(CHUNK));
        self.open = Some(id);
        id
    }

    /// What is free of the open chunk.
    pub(super) fn room(&mut self, id: ChunkId) -> &mut [u8] {
        let filled = self.chunk(id).filled;
        // SAFETY: `filled` is at most CHUNK, the length of the memory. Bios and slices refer only to what has been
        // filled, and `self` is borrowed for as long as this slice lives.
        unsafe { std::slice::from_raw_parts_mut(self.memory(id).as_ptr().add(filled), CHUNK - filled) }
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
            }
        }
    }

    /// Filled bytes of a chunk that has users.
    pub(super) fn filled(&self, id: ChunkId, range: std::ops::Range<usize>) -> &[u8] {
        assert!(range.start <= range.end && range.end <= self.chunk(id).filled, "only what has been filled is read");
        // SAFETY: within the memory, and filled bytes do not change while the chunk has users.
        unsafe { std::slice::from_raw_parts(self.memory(id).as_ptr().add(range.start), range.len()) }
    }

    /// Where filled bytes lie, for a bio; they stay while the chunk has users.
    pub(super) fn filled_ptr(&self, id: ChunkId, range: std::ops::Range<usize>) -> *mut u8 {
        self.filled(id, range.clone());
        self.memory(id).as_ptr().wrapping_add(range.start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_used_again_and_bounded() {
        let mut pool = Pool::default();
        let sizes: Vec<_> = [1, 4096, 4097, 32 << 20].into_iter().map(|len| pool.take(len)).collect();
        assert_eq!(sizes.iter().map(Buf::capacity).collect::<Vec<_>>(), [4096, 4096, 8192, 32 << 20]);
        assert_eq!(pool.in_use(), 4096 * 4 + (32 << 20));
        sizes.into_iter().for_each(|buf| pool.give(buf));
        assert_eq!((pool.in_use(), pool.kept), (0, 4096 * 4), "32 MiB are not kept");
        let first = pool.take(10).as_ptr();
        let again = pool.take(8192);
        assert_ne!(first, again.as_ptr());
        pool.give(again);
        pool.trim();
        assert!(!pool.is_warm());
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
