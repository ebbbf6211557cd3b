//! Blocks in memory: for tests, and for looking at an image that is there as bytes.

use crate::block::{BLOCK_SIZE, Block, BlockIo, IoError, IoFuture};
use std::future::ready;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A device in memory, of whole blocks. Clones are the same device. What is past its end is an error; nothing blocks.
#[derive(Clone)]
pub struct Memory(Arc<Mutex<Vec<u8>>>);

impl Memory {
    /// A device with this content. Bytes behind the last whole block are not reached.
    pub fn of(image: Vec<u8>) -> Self {
        Self(Arc::new(Mutex::new(image)))
    }

    /// So many blocks of zeroes.
    pub fn new(blocks: usize) -> Self {
        Self::of(vec![0; blocks * BLOCK_SIZE])
    }

    /// The same device as what metadata is read from and written to.
    pub fn io(&self) -> Arc<dyn BlockIo> {
        Arc::new(self.clone())
    }

    /// A copy of what it holds.
    pub fn image(&self) -> Vec<u8> {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<u8>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn place(at: u64, len: usize) -> Result<Range<usize>, IoError> {
        let from = usize::try_from(at).ok().and_then(|at| at.checked_mul(BLOCK_SIZE));
        let range = from.and_then(|from| Some(from..from.checked_add(BLOCK_SIZE)?));
        range.filter(|range| range.end <= len).ok_or(IoError::PastEnd)
    }

    fn put(&self, at: u64, block: &Block) -> Result<(), IoError> {
        let mut image = self.lock();
        let place = Self::place(at, image.len())?;
        image[place].copy_from_slice(&block.0);
        Ok(())
    }
}

impl BlockIo for Memory {
    fn blocks(&self) -> u64 {
        (self.lock().len() / BLOCK_SIZE) as u64
    }

    fn read(&self, at: u64, mut into: Box<Block>) -> IoFuture<'_, Box<Block>> {
        let image = self.lock();
        Box::pin(ready(Self::place(at, image.len()).map(|place| {
            into.0.copy_from_slice(&image[place]);
            into
        })))
    }

    fn write(&self, blocks: Vec<(u64, Box<Block>)>) -> IoFuture<'_, Vec<(u64, Box<Block>)>> {
        let done = blocks.iter().try_for_each(|(at, block)| self.put(*at, block));
        Box::pin(ready(done.map(|()| blocks)))
    }

    fn flush(&self) -> IoFuture<'_, ()> {
        Box::pin(ready(Ok(())))
    }

    fn write_fua(&self, at: u64, block: Box<Block>) -> IoFuture<'_, Box<Block>> {
        Box::pin(ready(self.put(at, &block).map(|()| block)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block::block_on;

    #[test]
    fn what_is_written_is_there_and_past_the_end_is_nothing() {
        let memory = Memory::of(vec![7; 2 * BLOCK_SIZE + 1]);
        let same = memory.io();
        assert_eq!(same.blocks(), 2);
        assert!(block_on(same.write_fua(1, Block::zeroed())).is_ok());
        assert_eq!(memory.image(), [vec![7; BLOCK_SIZE], vec![0; BLOCK_SIZE], vec![7]].concat());
        assert!(block_on(memory.read(1, Block::zeroed())).is_ok_and(|block| block.0 == Block::zeroed().0));
        for at in [2, 3, u64::MAX / BLOCK_SIZE as u64, u64::MAX] {
            assert_eq!(block_on(memory.read(at, Block::zeroed())).err(), Some(IoError::PastEnd), "{at}");
            assert_eq!(block_on(memory.write(vec![(at, Block::zeroed())])).err(), Some(IoError::PastEnd), "{at}");
        }
    }
}
