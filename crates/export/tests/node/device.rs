//! A disk in memory that does what a test wants: changes its size, holds bios back, counts them.

use std::any::Any;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use udm_base::{Sector, Sectors};
use udm_export::{Export, Refused};
use udm_io::{Bio, BlockDevice, Cx, DeviceId, Extent, ExtentKind, ExtentsReply, Limits, Memory, Op, OpFlags};

/// The disk.
pub(crate) struct Disk {
    memory: Memory,
    limits: Limits,
    sectors: AtomicU64,
    pub(crate) read_only: AtomicBool,
    pub(crate) open: AtomicUsize,
    held: Mutex<(bool, Vec<Bio>)>,
    seen: Mutex<Vec<(Op, OpFlags, u64, u64)>>,
    questions: Mutex<Option<Vec<Asked>>>,
}

/// A question that is kept.
struct Asked {
    sector: Sector,
    sectors: Sectors,
    reply: ExtentsReply,
}

impl Disk {
    pub(crate) fn new(bytes: u64, limits: Limits) -> Arc<Self> {
        let sectors = Sectors::in_bytes(bytes);
        Arc::new(Self {
            memory: Memory::new(sectors).expect("memory"),
            limits,
            sectors: AtomicU64::new(sectors.get()),
            read_only: AtomicBool::new(false),
            open: AtomicUsize::new(0),
            held: Mutex::default(),
            seen: Mutex::default(),
            questions: Mutex::default(),
        })
    }

    /// With blocks of so many bytes.
    pub(crate) fn blocks(bytes: u64, block: u32) -> Arc<Self> {
        Self::new(bytes, Limits { logical_block_size: block, physical_block_size: block, ..Limits::default() })
    }

    /// No larger than it was made.
    pub(crate) fn resize(&self, bytes: u64) {
        self.sectors.store(Sectors::in_bytes(bytes).get(), Ordering::SeqCst);
    }

    /// From now on questions are kept.
    pub(crate) fn hold_questions(&self) {
        self.questions.lock().unwrap().get_or_insert_default();
    }

    pub(crate) fn held_questions(&self) -> usize {
        self.questions.lock().unwrap().as_ref().map_or(0, Vec::len)
    }

    /// Answers questions, and keeps no more.
    pub(crate) fn answer(&self) {
        let asked = self.questions.lock().unwrap().take();
        asked.into_iter().flatten().for_each(|Asked { sector, sectors, reply }| tell(sector, sectors, reply));
    }

    /// From now on bios are kept.
    pub(crate) fn hold(&self) {
        self.held.lock().unwrap().0 = true;
    }

    pub(crate) fn held(&self) -> usize {
        self.held.lock().unwrap().1.len()
    }

    /// Lets the last go first, and keeps no more.
    pub(crate) fn release(&self) {
        let bios = {
            let mut held = self.held.lock().unwrap();
            held.0 = false;
            std::mem::take(&mut held.1)
        };
        bios.into_iter().rev().for_each(|bio| self.serve(bio));
    }

    /// What bios there were since the last call: operation, flags, sector and length.
    pub(crate) fn seen(&self) -> Vec<(Op, OpFlags, u64, u64)> {
        std::mem::take(&mut *self.seen.lock().unwrap())
    }

    fn serve(&self, bio: Bio) {
        let status = self.memory.serve(&bio);
        bio.end(status);
    }
}

impl BlockDevice for Disk {
    fn submit(&self, _: &Cx<'_>, bio: Bio) -> Option<Bio> {
        self.seen.lock().unwrap().push((bio.op(), bio.flags(), bio.sector().get(), bio.sectors().get()));
        let block = u64::from(self.limits.logical_block_size / 512);
        assert_eq!((bio.sector().get() | bio.sectors().get()) % block, 0, "{bio:?} is not of whole blocks");
        let mut held = self.held.lock().unwrap();
        if held.0 {
            held.1.push(bio);
        } else {
            drop(held);
            self.serve(bio);
        }
        None
    }
    fn sectors(&self) -> Sectors {
        Sectors::new(self.sectors.load(Ordering::SeqCst))
    }
    fn limits(&self) -> Limits {
        self.limits
    }
    fn id(&self) -> DeviceId {
        DeviceId::Anonymous(std::ptr::from_ref(self) as usize)
    }
    fn name(&self) -> String {
        "disk".into()
    }
    fn extents(&self, _: &Cx<'_>, sector: Sector, sectors: Sectors, reply: ExtentsReply) {
        let mut questions = self.questions.lock().unwrap();
        match &mut *questions {
            Some(asked) => asked.push(Asked { sector, sectors, reply }),
            None => tell(sector, sectors, reply),
        }
    }
    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// 64 KiB of data, 64 KiB of a hole, and so on.
fn tell(sector: Sector, sectors: Sectors, reply: ExtentsReply) {
    let run = (128 - sector.get() % 128).min(sectors.get());
    let kind = if (sector.get() / 128).is_multiple_of(2) { ExtentKind::Data } else { ExtentKind::Hole };
    reply.give(vec![Extent { sectors: Sectors::new(run), kind }]);
}

/// The disk as a node's.
pub(crate) struct Shown(pub(crate) Arc<Disk>);

struct Opened(Arc<Disk>);

impl Drop for Opened {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Export for Shown {
    fn device(&self) -> Arc<dyn BlockDevice> {
        self.0.clone()
    }
    fn read_only(&self) -> bool {
        self.0.read_only.load(Ordering::SeqCst)
    }
    fn open(&self) -> Result<Box<dyn Any + Send>, Refused> {
        self.0.open.fetch_add(1, Ordering::SeqCst);
        Ok(Box::new(Opened(self.0.clone())))
    }
    fn name(&self) -> String {
        "disk".into()
    }
}
