//! `base:allocation` from a device's extents.

use udm_base::{Sector, Sectors};
use udm_io::nbd::wire::consts::base_allocation::{STATE_HOLE, STATE_ZERO};
use udm_io::nbd::wire::reply::{MAX_EXTENTS, StatusExtent};
use udm_io::{BlockDevice, Channel, ExtentKind, Questions};

/// Most sectors in one extent of the protocol, whose lengths are 32-bit bytes: a multiple of 64 KiB, so that pieces
/// end on block borders.
const MAX_SECTORS: u64 = (u32::MAX as u64 & !0xffff) >> 9;

/// Most questions to the device for one request. Stripes of one sector would take millions for 4 GiB of one kind, and
/// the other clients of this thread would wait meanwhile.
const MAX_QUESTIONS: usize = 1024;

/// The extents of a range that is not empty; the first alone if `one`. Neighbours of a kind are merged. May stop
/// short of the range when there are many, or many questions were needed. Blocks until the device has answered.
pub(super) fn collect(
    channel: &Channel,
    device: &dyn BlockDevice,
    start: Sector,
    length: Sectors,
    one: bool,
) -> Vec<StatusExtent> {
    let mut found: Vec<StatusExtent> = Vec::new();
    let mut at = start;
    let mut left = length.get();
    let most = if one { 1 } else { MAX_EXTENTS };
    for _ in 0..MAX_QUESTIONS {
        let before = left;
        for extent in Questions::wait_for(channel, device, at, Sectors::new(left)) {
            let flags = match extent.kind {
                ExtentKind::Data => 0,
                ExtentKind::Zero => STATE_ZERO,
                ExtentKind::Hole => STATE_HOLE | STATE_ZERO,
            };
            let mut sectors = extent.sectors.get().min(left);
            at += Sectors::new(sectors);
            left -= sectors;
            while sectors > 0 {
                let piece = sectors.min(MAX_SECTORS);
                sectors -= piece;
                // At most MAX_SECTORS: fits 32 bits of bytes.
                let bytes = (piece << 9) as u32;
                let same = found.last_mut().filter(|last| last.flags == flags);
                if let Some((length, last)) = same.and_then(|last| Some((last.length.checked_add(bytes)?, last))) {
                    last.length = length;
                    continue;
                }
                if found.len() == most {
                    return found;
                }
                found.push(StatusExtent { length: bytes, flags });
            }
        }
        // A device that says nothing more is taken to hold data: the reply must not be empty.
        if left == before {
            if found.is_empty() {
                found.push(StatusExtent { length: (left.min(MAX_SECTORS) << 9) as u32, flags: 0 });
            }
            break;
        }
        if left == 0 {
            break;
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::any::Any;
    use udm_io::{Bio, Cx, DeviceId, Domain, Extent, ExtentsReply, Limits, Status};

    /// A device that answers from a list, at most `step` extents a call.
    struct Listed(Vec<(u64, ExtentKind)>, usize);

    impl BlockDevice for Listed {
        fn submit(&self, _: &Cx<'_>, bio: Bio) -> Option<Bio> {
            bio.end(Status::Io);
            None
        }
        fn sectors(&self) -> Sectors {
            Sectors::new(self.0.iter().map(|e| e.0).sum())
        }
        fn limits(&self) -> Limits {
            Limits::default()
        }
        fn id(&self) -> DeviceId {
            DeviceId::Anonymous(1)
        }
        fn name(&self) -> String {
            "listed".into()
        }
        fn extents(&self, _: &Cx<'_>, sector: Sector, sectors: Sectors, reply: ExtentsReply) {
            let (mut pos, mut out) = (0, Vec::new());
            let (start, end) = (sector.get(), sector.get() + sectors.get());
            for &(len, kind) in &self.0 {
                let (from, to) = (pos.max(start), (pos + len).min(end));
                pos += len;
                if from < to && out.len() < self.1 {
                    out.push(Extent { sectors: Sectors::new(to - from), kind });
                }
            }
            reply.give(out);
        }
        fn as_any(&self) -> &dyn Any {
            self
        }
    }

    #[track_caller]
    fn check(device: &Listed, start: u64, length: u64, one: bool, expect: &[(u32, u32)]) {
        let channel = Domain::default().channel().unwrap();
        let found = collect(&channel, device, Sector::new(start), Sectors::new(length), one);
        assert_eq!(found.iter().map(|e| (e.length / 512, e.flags)).collect::<Vec<_>>(), expect);
    }

    #[test]
    fn extents_are_cut_merged_and_counted() {
        use ExtentKind::{Data, Hole, Zero};
        for step in [1, 2, 100] {
            let device = Listed(vec![(8, Data), (8, Data), (16, Hole), (8, Zero)], step);
            check(&device, 0, 40, false, &[(16, 0), (16, 3), (8, 2)]);
            check(&device, 4, 20, false, &[(12, 0), (8, 3)]);
            check(&device, 4, 20, true, &[(12, 0)]);
            check(&device, 39, 1, true, &[(1, 2)]);
        }
        check(&Listed(vec![], 1), 0, 8, false, &[(8, 0)]);
    }

    #[test]
    fn questions_are_bounded() {
        let device = Listed(vec![(2, ExtentKind::Data); MAX_QUESTIONS + 1], 1);
        check(&device, 0, 2 * MAX_QUESTIONS as u64 + 2, false, &[(2 * MAX_QUESTIONS as u32, 0)]);
    }

    #[test]
    fn a_run_beyond_32_bits_is_split() {
        let device = Listed(vec![(1 << 24, ExtentKind::Hole)], 9);
        let most = MAX_SECTORS as u32;
        check(&device, 0, 1 << 24, false, &[(most, 3), (most, 3), ((1 << 24) - 2 * most, 3)]);
    }
}
