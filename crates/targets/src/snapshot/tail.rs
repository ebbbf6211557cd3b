//! The rest of the chunk in which a snapshot ended before it grew.
//!
//! A chunk is copied as far as the origin goes, so that what follows at its place may never have been written. When the
//! snapshot grows over it, that is to show what the origin has there at that moment. The kernel leaves in it what
//! happens to be there.

use super::shared::Snapshot;
use std::io;
use std::sync::atomic::Ordering::SeqCst;
use udm_base::{AlignedBuf, Sector, Sectors};
use udm_io::{BlockDevice, BlockingIo, OpFlags, Status};

/// As much as is copied at a time.
const PIECE: Sectors = Sectors::in_bytes(1 << 20);

/// The means to fill it: had before anybody waits, because they may be refused.
pub(super) struct Tail {
    origin: BlockingIo,
    cow: BlockingIo,
}

impl Tail {
    /// For a snapshot that is to be `len` long; nothing when that is no more than it is, or it ends with a chunk.
    pub(super) fn of(it: &Snapshot, len: Sectors) -> io::Result<Option<Self>> {
        let end = Sector::new(it.sectors.load(SeqCst));
        if len.from_start() <= end || it.chunk.within(end).is_zero() {
            return Ok(None);
        }
        let open = |dev| BlockingIo::new(it.origin.domain(), dev);
        Ok(Some(Self { origin: open(it.origin.dev.clone())?, cow: open(it.cow.clone())? }))
    }

    /// Fills it, if the chunk is not the origin's. Blocks. Nothing may be in flight on the snapshot, nor be written to
    /// the origin.
    pub(super) fn fill(&self, it: &Snapshot) -> Result<(), Status> {
        let end = Sector::new(it.sectors.load(SeqCst));
        let chunk = it.chunk.of(end);
        let Some(entry) = it.exceptions.get(chunk).filter(|_| it.valid.load(SeqCst)) else { return Ok(()) };
        let size = it.origin.dev.sectors().from_start();
        let after = (it.chunk.start(chunk) + it.chunk.sectors()).min(size);
        let block = block_of(&*it.cow).max(block_of(&*it.origin.dev));
        let mut from = Sector::new(end.get() / block.get() * block.get());
        let mut keep = end - from;
        while from < after {
            let most = (after - from).min(PIECE);
            let whole = Sectors::new(most.get().next_multiple_of(block.get()));
            let mut bytes = AlignedBuf::zeroed(whole.as_len());
            let place = it.place(entry.new, from);
            if !keep.is_zero() {
                self.cow.read(place, &mut bytes)?;
            }
            let mut now = AlignedBuf::zeroed(most.as_len());
            self.origin.read(from, &mut now)?;
            let kept = std::mem::replace(&mut keep, Sectors::ZERO).as_len();
            bytes[kept..now.len()].copy_from_slice(&now[kept..]);
            self.cow.write(place, &bytes, OpFlags::NONE)?;
            from += most;
        }
        self.cow.flush()
    }
}

fn block_of(dev: &dyn BlockDevice) -> Sectors {
    Sectors::in_bytes(dev.limits().logical_block_size.into()).max(Sectors::new(1))
}
