//! Writes with bytes replaced: of a copy, because the memory is its writer's.

use std::sync::Arc;
use udm_base::{AlignedBuf, Sectors};
use udm_core::Held;
use udm_io::{Bio, BlockDevice, Cx, InternalIo, InternalIoOwner, InternalWaiter, IoBuffer, IoMemory, Op, Status};

/// The longest write that is copied, as in the kernel (`clone_bio`: 1024 pages).
pub(super) const SECTORS_MAX: Sectors = Sectors::new(8192);

/// Bytes to be replaced, each with its new value. Of writes they lie within [`SECTORS_MAX`].
pub(super) type Spoils = [Option<(usize, u8)>; 2];

/// Sends the copies.
pub(super) struct Spoiler {
    dev: Arc<dyn BlockDevice>,
    /// Writes for which their channel has no internal bio.
    pub(super) held: Held,
}

/// A copy, and whom it is of.
pub(super) struct Copy {
    data: AlignedBuf,
    of: Option<Bio>,
}

impl IoMemory for Copy {
    fn buffer(&mut self) -> IoBuffer<'_> {
        IoBuffer::Out(&self.data)
    }
}

impl Spoiler {
    pub(super) fn new(dev: Arc<dyn BlockDevice>) -> Self {
        Self { dev, held: Held::default() }
    }

    /// Writes a copy of what `bio` writes, where it would be written, and ends it when that is done. Gives it back when
    /// the channel has no internal bio to spare.
    pub(super) fn write(self: &Arc<Self>, cx: &Cx<'_>, bio: Bio, spoils: &Spoils) -> Result<(), Bio> {
        let mut data = AlignedBuf::zeroed(bio.sectors().as_len());
        bio.copy_out(0, &mut data);
        for (byte, value) in spoils.iter().flatten() {
            data[*byte] = *value;
        }
        let (flags, sector, sectors) = (bio.flags(), bio.sector(), bio.sectors());
        let mut io = InternalIo::new(self.dev.clone(), Copy { data, of: Some(bio) });
        (io.op, io.flags, io.sector, io.sectors) = (Op::Write, flags, sector, sectors);
        cx.submit_internal_io(io, self.clone()).map_err(|io| io.memory.of.expect("it was not sent"))
    }

    /// Whether it will be told when the channel has an internal bio again; else the channel gives no more.
    pub(super) fn waits(self: &Arc<Self>, cx: &Cx<'_>) -> bool {
        cx.when_internal(Cx::internal_level(&*self.dev), self.clone())
    }
}

impl InternalIoOwner<Copy> for Spoiler {
    fn io_done(self: Arc<Self>, cx: &Cx<'_>, mut io: Box<InternalIo<Copy>>, status: Status) {
        if let Some(bio) = io.memory.of.take() {
            cx.end(bio, status);
        }
    }
}

impl InternalWaiter for Spoiler {
    fn again(self: Arc<Self>, _: &Cx<'_>) {
        self.held.release_all();
    }
}

const BYTE_BITS: u32 = 23;
const _: () =
    assert!(1 << (BYTE_BITS - 1) >= SECTORS_MAX.get() * 512, "the number of a byte, and whether there is one");

/// Both as a bio's context.
pub(super) fn packed(spoils: Spoils) -> u64 {
    let one = |spoil: Option<(usize, u8)>| {
        spoil.map_or(0, |(byte, value)| (1 + byte as u64 * 2) << u8::BITS | u64::from(value))
    };
    one(spoils[0]) << 32 | one(spoils[1])
}

pub(super) fn unpacked(context: u64) -> Spoils {
    [context >> 32, context & u64::from(u32::MAX)].map(|one| {
        let byte = one >> u8::BITS;
        (byte & 1 == 1).then_some(((byte >> 1) as usize, one as u8))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_packed_comes_out_again() {
        let last = SECTORS_MAX.get() as usize * 512 - 1;
        let some = [None, Some((0, 0)), Some((1, 7)), Some((last, 255))];
        for one in some {
            for two in some {
                assert_eq!(unpacked(packed([one, two])), [one, two]);
            }
        }
    }
}
