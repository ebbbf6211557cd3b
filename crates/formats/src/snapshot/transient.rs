//! A store that is forgotten: chunks are given one after the other, and nothing is written down.

use super::{ChunkSize, Full, Usage};
use udm_base::{Sector, Sectors};

/// Allocates the chunks of a transient snapshot (`drivers/md/dm-snap-transient.c`, 6.12): from chunk 0 on.
#[derive(Debug)]
pub struct Transient {
    chunk: ChunkSize,
    device: Sectors,
    next_free: u64,
}

impl Transient {
    /// For a COW device of `device` sectors.
    pub fn new(chunk: ChunkSize, device: Sectors) -> Self {
        Self { chunk, device, next_free: 0 }
    }

    /// The next chunk.
    ///
    /// # Errors
    /// When there is none.
    pub fn allocate(&mut self) -> Result<u64, Full> {
        if self.next_free >= self.chunk.of(Sector::ZERO + self.device) {
            return Err(Full);
        }
        self.next_free += 1;
        Ok(self.next_free - 1)
    }

    /// The COW device has `device` sectors now.
    pub fn grow(&mut self, device: Sectors) {
        self.device = self.device.max(device);
    }

    /// What the status shows.
    pub fn usage(&self) -> Usage {
        let allocated = self.chunk.start(self.next_free) - Sector::ZERO;
        Usage { allocated, total: self.device, metadata: Sectors::ZERO }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_whole_chunks() {
        let mut store = Transient::new(ChunkSize::new(Sectors::new(8)).unwrap(), Sectors::new(31));
        let given: Vec<u64> = std::iter::from_fn(|| store.allocate().ok()).collect();
        assert_eq!(given, [0, 1, 2]);
        assert_eq!(store.usage().to_string(), "24/31 0");
        store.grow(Sectors::new(30));
        assert_eq!(store.allocate(), Err(Full));
        store.grow(Sectors::new(32));
        assert_eq!((store.allocate(), store.allocate()), (Ok(3), Err(Full)));
        assert_eq!(store.usage().to_string(), "32/32 0");
    }
}
