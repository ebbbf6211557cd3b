//! What to write to make a change of the store true.

use udm_base::{AlignedBuf, Sector, Sectors};

/// Writes to the COW device that together make a change true, in two steps.
///
/// 1. Every write of `first`, in any order.
/// 2. When they have completed, and the data of the exceptions too: `last`, with PREFLUSH and FUA (or flush, write,
///    flush). When it has completed, the change has happened; before, nothing of it has.
#[derive(Debug)]
#[must_use]
pub struct Batch {
    /// Writes that nobody looks at yet.
    pub first: Vec<AreaWrite>,
    /// The write that makes it true. Torn, it makes the exceptions up to some one true, which is no harm: what they
    /// point at is there.
    pub last: AreaWrite,
    pub(super) number: u64,
}

/// One write.
#[derive(Debug)]
pub struct AreaWrite {
    /// Where.
    pub sector: Sector,
    /// How long.
    pub sectors: Sectors,
    /// What.
    pub content: Content,
}

/// What a write holds.
pub enum Content {
    /// Zeroes; the range can be as long as a chunk, so let the device make them.
    Zeroes,
    /// These bytes, as long as the write. A worker keeps them until the write has completed.
    Bytes(AlignedBuf),
}

impl std::fmt::Debug for Content {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Zeroes => f.write_str("zeroes"),
            Self::Bytes(bytes) => write!(f, "{} bytes", bytes.len()),
        }
    }
}

impl Batch {
    /// All writes, `last` at the end: for who writes to a file one after the other.
    pub fn writes(&self) -> impl Iterator<Item = &AreaWrite> {
        self.first.iter().chain([&self.last])
    }
}

impl AreaWrite {
    pub(super) fn zeroes(sector: Sector, sectors: Sectors) -> Self {
        Self { sector, sectors, content: Content::Zeroes }
    }

    pub(super) fn bytes(sector: Sector, bytes: AlignedBuf) -> Self {
        Self { sector, sectors: Sectors::in_bytes(bytes.len() as u64), content: Content::Bytes(bytes) }
    }
}
