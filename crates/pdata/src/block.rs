//! A metadata block in memory, and what blocks are read from and written to.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

/// The size of every metadata block, in bytes (`THIN_METADATA_BLOCK_SIZE`, `drivers/md/dm-thin-metadata.h`, 6.12).
pub const BLOCK_SIZE: usize = 4096;

/// A block's bytes, aligned for direct I/O.
#[derive(Clone)]
#[repr(C, align(4096))]
pub struct Block(pub [u8; BLOCK_SIZE]);

impl Block {
    /// A block of zeroes, made in place: it never lies on the stack.
    pub fn zeroed() -> Box<Self> {
        // A Vec of one element is the way to heap memory without a copy and without `unsafe`.
        let mut one = Vec::with_capacity(1);
        one.push(Self([0; BLOCK_SIZE]));
        let boxed: Box<[Self]> = one.into_boxed_slice();
        boxed.into_iter().next().map(Box::new).expect("one was pushed")
    }
}

/// Why a block could not be read or written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum IoError {
    /// The device failed.
    #[error("the device answered with an I/O error")]
    Failed,
    /// The block lies past the device's end.
    #[error("the block lies past the end of the device")]
    PastEnd,
}

/// What a [`BlockIo`] answers with. Ready at once for blocking devices; otherwise who polls it again has seen to it that
/// the I/O was submitted, and polls when something has completed.
pub type IoFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, IoError>> + Send + 'a>>;

/// Where metadata blocks lie. Futures may be polled by any thread, one at a time.
pub trait BlockIo: Send + Sync + 'static {
    /// How many blocks there are now.
    fn blocks(&self) -> u64;

    /// Reads block `at` into `into`.
    fn read(&self, at: u64, into: Box<Block>) -> IoFuture<'_, Box<Block>>;

    /// Writes blocks, in any order and many at a time. Nothing is durable before [`flush`](Self::flush).
    fn write(&self, blocks: Vec<(u64, Arc<Block>)>) -> IoFuture<'_, ()>;

    /// Makes durable what writes that have completed wrote.
    fn flush(&self) -> IoFuture<'_, ()>;

    /// Writes one block, durable at its completion.
    fn write_fua(&self, at: u64, block: Arc<Block>) -> IoFuture<'_, ()>;
}
