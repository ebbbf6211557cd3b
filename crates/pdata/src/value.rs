//! What a tree's leaves hold.

use crate::layout::IndexEntry;
use zerocopy::{FromBytes, IntoBytes};

/// What a value refers to, so that whoever copies a shared leaf knows what got one more reference.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ref {
    /// Nothing that is counted.
    Uncounted,
    /// A block of data.
    Data(u64),
    /// A metadata block, such as the root of another tree.
    Metadata(u64),
}

/// A value of a tree: bytes on disk and what they mean. Decoding never fails; what is out of range shows when it is
/// followed.
pub trait Value: Copy + Send + 'static {
    /// Bytes on disk.
    const SIZE: usize;

    /// The value that `bytes`, [`SIZE`](Self::SIZE) long, are.
    fn decode(bytes: &[u8]) -> Self;

    /// Writes the value to `bytes`, [`SIZE`](Self::SIZE) long.
    fn encode(&self, bytes: &mut [u8]);

    /// What it refers to.
    fn refers_to(&self) -> Ref {
        Ref::Uncounted
    }
}

impl Value for u32 {
    const SIZE: usize = 4;

    fn decode(bytes: &[u8]) -> Self {
        Self::from_le_bytes(bytes.try_into().expect("four bytes"))
    }

    fn encode(&self, bytes: &mut [u8]) {
        bytes.copy_from_slice(&self.to_le_bytes());
    }
}

impl Value for u64 {
    const SIZE: usize = 8;

    fn decode(bytes: &[u8]) -> Self {
        Self::from_le_bytes(bytes.try_into().expect("eight bytes"))
    }

    fn encode(&self, bytes: &mut [u8]) {
        bytes.copy_from_slice(&self.to_le_bytes());
    }
}

/// The root of a tree within a tree, as in the upper level of a two-level tree.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Root(pub u64);

impl Value for Root {
    const SIZE: usize = 8;

    fn decode(bytes: &[u8]) -> Self {
        Self(u64::decode(bytes))
    }

    fn encode(&self, bytes: &mut [u8]) {
        self.0.encode(bytes);
    }

    fn refers_to(&self) -> Ref {
        Ref::Metadata(self.0)
    }
}

impl Value for IndexEntry {
    const SIZE: usize = 16;

    fn decode(bytes: &[u8]) -> Self {
        Self::read_from_bytes(bytes).expect("sixteen bytes")
    }

    fn encode(&self, bytes: &mut [u8]) {
        bytes.copy_from_slice(self.as_bytes());
    }
}
