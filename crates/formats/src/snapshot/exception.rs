//! An exception: a chunk of the origin whose content lies on the COW device.

use super::layout::RawException;
use zerocopy::{FromBytes, IntoBytes};

/// What `old`, a chunk of the origin, held is in `new`, a chunk of the COW device.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Exception {
    /// The chunk of the origin.
    pub old: u64,
    /// The chunk of the COW device.
    pub new: u64,
}

impl Exception {
    pub(super) fn decode(raw: &RawException) -> Self {
        Self { old: raw.old_chunk.get(), new: raw.new_chunk.get() }
    }

    pub(super) fn encode(self, into: &mut [u8]) {
        let raw = RawException { old_chunk: self.old.into(), new_chunk: self.new.into() };
        into.copy_from_slice(raw.as_bytes());
    }

    /// The entries in `bytes`, of which there are whole ones only.
    pub(super) fn entries(bytes: &[u8]) -> impl Iterator<Item = Self> + '_ {
        <[RawException]>::ref_from_bytes(bytes).expect("whole entries, of no alignment").iter().map(Self::decode)
    }
}

/// Exceptions that follow each other on both devices.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Run {
    /// The first chunk of the origin.
    pub old: u64,
    /// The first chunk of the COW device.
    pub new: u64,
    /// How many chunks.
    pub len: u64,
}

/// The runs that `exceptions`, in any order, make when they are sorted by the origin's chunks: each can be copied at
/// once. Cost: a sort.
pub fn runs(exceptions: &mut [Exception]) -> Vec<Run> {
    exceptions.sort_unstable();
    let mut runs: Vec<Run> = Vec::new();
    for e in exceptions {
        match runs.last_mut() {
            Some(run) if run.old + run.len == e.old && run.new + run.len == e.new => run.len += 1,
            _ => runs.push(Run { old: e.old, new: e.new, len: 1 }),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_make_runs() {
        let of = |list: &[(u64, u64)]| {
            let mut list: Vec<_> = list.iter().map(|&(old, new)| Exception { old, new }).collect();
            runs(&mut list).iter().map(|r| (r.old, r.new, r.len)).collect::<Vec<_>>()
        };
        assert_eq!(of(&[]), []);
        assert_eq!(of(&[(5, 2), (6, 3), (7, 4)]), [(5, 2, 3)]);
        assert_eq!(of(&[(7, 4), (5, 2), (6, 3)]), [(5, 2, 3)]);
        assert_eq!(of(&[(5, 2), (6, 4)]), [(5, 2, 1), (6, 4, 1)]);
        assert_eq!(of(&[(5, 4), (6, 3)]), [(5, 4, 1), (6, 3, 1)]);
    }
}
