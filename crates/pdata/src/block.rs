//! A metadata block in memory, and what blocks are read from and written to.

use std::future::Future;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};

use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

/// The size of every metadata block, in bytes (`THIN_METADATA_BLOCK_SIZE`, `drivers/md/dm-thin-metadata.h`, 6.12).
pub const BLOCK_SIZE: usize = 4096;

/// A block's bytes, aligned for direct I/O.
#[derive(Clone, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C, align(4096))]
pub struct Block(pub [u8; BLOCK_SIZE]);

impl Block {
    /// A block of zeroes, made on the heap: it never lies on the stack.
    #[must_use]
    pub fn zeroed() -> Box<Self> {
        Self::new_box_zeroed().expect("memory for one block")
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

/// What a [`BlockIo`] answers with. Ready at once for blocking devices; otherwise who polls it again has seen to it
/// that the I/O was submitted, and polls when something has completed.
pub type IoFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, IoError>> + Send + 'a>>;

/// Where metadata blocks lie. Futures may be polled by any thread, one at a time.
///
/// Blocks go in and come back as boxes: nothing is copied, and nothing is shared with I/O that is under way.
pub trait BlockIo: Send + Sync + 'static {
    /// How many blocks there are now.
    fn blocks(&self) -> u64;

    /// Reads block `at` into `into`.
    fn read(&self, at: u64, into: Box<Block>) -> IoFuture<'_, Box<Block>>;

    /// Writes blocks, in any order and many at a time, and gives the same blocks back in the same order. Nothing is
    /// durable before [`flush`](Self::flush).
    fn write(&self, blocks: Vec<(u64, Box<Block>)>) -> IoFuture<'_, Vec<(u64, Box<Block>)>>;

    /// Makes durable what writes that have completed wrote.
    fn flush(&self) -> IoFuture<'_, ()>;

    /// Writes one block, durable at its completion, and gives it back.
    fn write_fua(&self, at: u64, block: Box<Block>) -> IoFuture<'_, Box<Block>>;
}

/// Runs `future` to its end on this thread, over a [`BlockIo`] whose futures are always ready.
///
/// # Panics
/// When the future is pending: it was given a device that needs somebody to poll it, which is a bug of the caller.
pub fn block_on<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => output,
        Poll::Pending => panic!("block_on over a device that does not answer at once"),
    }
}
