//! A device that keeps a larger record for each bio that passes, to see what its size costs.

use std::any::Any;
use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use udm_base::Sectors;
use udm_core::MappedDevice;
use udm_io::{Bio, BlockDevice, Cx, DeviceId, Limits, MAX_CHANNELS};

/// Words that the seed's record would have grown by: the device, the target, the bio, three words of its iterator, the
/// end function and its private word, the start time, and a magic number behind all.
const WORDS: usize = 10;
const MAGIC: u64 = 9_693_664;
/// The record of one channel, whose jobs have one bio out at a time. Only that channel touches it, so that its stores
/// are plain ones; two lines, so that no two channels share one.
#[repr(align(128))]
struct Record([AtomicU64; WORDS]);

/// Passes bios on to `beneath`.
pub(super) struct Enlarged {
    beneath: Arc<MappedDevice>,
    records: Box<[Record]>,
}

impl Enlarged {
    pub(super) fn over(beneath: Arc<MappedDevice>) -> Self {
        let record = || Record(std::array::from_fn(|_| AtomicU64::new(0)));
        Self { beneath, records: (0..MAX_CHANNELS).map(|_| record()).collect() }
    }
}

/// The bio has come back: every word is read, and the last one checked.
fn done(_: &Cx<'_>, bio: Bio, record: *const ()) -> Option<Bio> {
    // SAFETY: pushed with a record of a device that its submitter holds until the bio has completed.
    let record = unsafe { &*record.cast::<Record>() };
    for word in &record.0[..WORDS - 1] {
        black_box(word.load(Ordering::Relaxed));
    }
    assert_eq!(record.0[WORDS - 1].load(Ordering::Relaxed), MAGIC, "the record is whole");
    Some(bio)
}

impl BlockDevice for Enlarged {
    #[inline]
    fn submit(&self, cx: &Cx<'_>, mut bio: Bio) -> Option<Bio> {
        let record = &self.records[cx.id()];
        let here = std::ptr::from_ref(self) as u64;
        let iterator = [bio.sector().get(), bio.sectors().get(), bio.segments().bytes() as u64];
        let [at, sectors, bytes] = iterator;
        let flags = u64::from(bio.op().is_write());
        let words = [here, here, bio.word(), at, sectors, bytes, done as *const () as u64, bio.word(), flags, MAGIC];
        for (place, word) in record.0.iter().zip(words) {
            place.store(word, Ordering::Relaxed);
        }
        // SAFETY: the record lies in this device, which the submitter holds until the bio has completed. Without room
        // for a frame nothing is to be restored, and the bio goes on without.
        unsafe { bio.push_frame(done, std::ptr::from_ref(record).cast()) };
        // SAFETY: the device beneath is held by this one.
        unsafe { bio.redirect(&*self.beneath) };
        Some(bio)
    }

    fn sectors(&self) -> Sectors {
        self.beneath.sectors()
    }

    fn limits(&self) -> Limits {
        self.beneath.limits()
    }

    fn id(&self) -> DeviceId {
        DeviceId::Anonymous(std::ptr::from_ref(self) as usize)
    }

    fn name(&self) -> String {
        "linear with an enlarged record".to_owned()
    }

    fn level(&self) -> usize {
        self.beneath.level()
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
