//! Devices that do what a test wants: hold bios back, fail them, count them.

use std::any::Any;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use udm_base::{Sector, Sectors};
use udm_io::{Bio, BlockDevice, Cx, DeviceId, Extent, ExtentKind, ExtentsReply, Limits, Memory, Op, OpFlags, Status};
use udm_testing::until;

/// One bio as a device saw it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) op: Op,
    pub(crate) flags: OpFlags,
    pub(crate) sector: u64,
    pub(crate) sectors: u64,
}

/// What is called before a bio.
pub(crate) type Before = Box<dyn Fn(usize) + Send>;

/// Memory that can hold its bios back, and writes down what it was asked.
pub(crate) struct Recorder {
    memory: Memory,
    limits: Limits,
    held: Mutex<Held>,
    pub(crate) seen: Mutex<Vec<Seen>>,
    waiting: AtomicUsize,
    /// Called in the server's thread before a bio is served, with its number.
    pub(crate) before: Mutex<Option<Before>>,
    /// It zeroes nothing any more, whatever its limits say.
    pub(crate) zeroes_nothing: AtomicBool,
    /// Questions are kept from now on.
    pub(crate) silent: AtomicBool,
    pub(crate) questions: Mutex<Vec<ExtentsReply>>,
}

#[derive(Default)]
struct Held {
    hold: bool,
    bios: Vec<Bio>,
}

impl Recorder {
    pub(crate) fn new(bytes: u64, limits: Limits) -> Self {
        let memory = Memory::new(Sectors::in_bytes(bytes)).expect("memory");
        Self {
            memory,
            limits,
            held: Mutex::default(),
            seen: Mutex::default(),
            waiting: AtomicUsize::new(0),
            before: Mutex::default(),
            zeroes_nothing: AtomicBool::new(false),
            silent: AtomicBool::new(false),
            questions: Mutex::default(),
        }
    }

    /// From now on bios are kept.
    pub(crate) fn hold(&self) {
        self.held.lock().expect("unpoisoned").hold = true;
    }

    /// Waits until `count` bios are kept.
    pub(crate) fn await_held(&self, count: usize) {
        until(&format!("{count} bios arrived"), || self.waiting.load(Ordering::SeqCst) >= count);
    }

    /// Waits until a question is kept.
    #[allow(dead_code, reason = "not every test that uses this file asks")]
    pub(crate) fn await_question(&self) {
        until("a question arrived", || !self.questions.lock().expect("unpoisoned").is_empty());
    }

    /// How many bios are kept.
    pub(crate) fn held(&self) -> usize {
        self.waiting.load(Ordering::SeqCst)
    }

    /// Lets the last bio go first, and keeps no more.
    pub(crate) fn release_in_reverse(&self) {
        let bios = {
            let mut held = self.held.lock().expect("unpoisoned");
            held.hold = false;
            self.waiting.store(0, Ordering::SeqCst);
            std::mem::take(&mut held.bios)
        };
        for bio in bios.into_iter().rev() {
            self.serve(bio);
        }
    }

    fn serve(&self, bio: Bio) {
        let can = match bio.op() {
            Op::Discard => !self.limits.max_discard.is_zero(),
            Op::WriteZeroes => !self.limits.max_write_zeroes.is_zero() && !self.zeroes_nothing.load(Ordering::SeqCst),
            _ => true,
        };
        let status = if can { self.memory.serve(&bio) } else { Status::NotSupported };
        bio.end(status);
    }
}

impl BlockDevice for Recorder {
    fn submit(&self, _: &Cx<'_>, bio: Bio) -> Option<Bio> {
        let seen = Seen { op: bio.op(), flags: bio.flags(), sector: bio.sector().get(), sectors: bio.sectors().get() };
        let number = {
            let mut all = self.seen.lock().expect("unpoisoned");
            all.push(seen);
            all.len()
        };
        if let Some(before) = &*self.before.lock().expect("unpoisoned") {
            before(number);
        }
        let mut held = self.held.lock().expect("unpoisoned");
        if held.hold {
            held.bios.push(bio);
            self.waiting.fetch_add(1, Ordering::SeqCst);
        } else {
            drop(held);
            self.serve(bio);
        }
        None
    }
    fn sectors(&self) -> Sectors {
        self.memory.sectors()
    }
    fn limits(&self) -> Limits {
        self.limits
    }
    fn id(&self) -> DeviceId {
        DeviceId::Anonymous(std::ptr::from_ref(self) as usize)
    }
    fn name(&self) -> String {
        "recorder".into()
    }
    /// 4 KiB of data, then a hole, then zeroes to the end.
    fn extents(&self, _: &Cx<'_>, sector: Sector, sectors: Sectors, reply: ExtentsReply) {
        if self.silent.load(Ordering::SeqCst) {
            return self.questions.lock().expect("unpoisoned").push(reply);
        }
        let (from, to) = (sector.get(), sector.get() + sectors.get());
        let runs = [(0, 8, ExtentKind::Data), (8, 64, ExtentKind::Hole), (64, u64::MAX, ExtentKind::Zero)];
        let cut = runs.into_iter().map(|(start, end, kind)| (start.max(from), end.min(to), kind));
        let cut = cut.filter(|(start, end, _)| start < end);
        reply.give(cut.map(|(start, end, kind)| Extent { sectors: Sectors::new(end - start), kind }).collect());
    }
    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// A device that fails every bio with one status.
#[allow(dead_code, reason = "not every test that uses this file has one")]
pub(crate) struct Failing(pub(crate) Status);

impl BlockDevice for Failing {
    fn submit(&self, _: &Cx<'_>, bio: Bio) -> Option<Bio> {
        bio.end(self.0);
        None
    }
    fn sectors(&self) -> Sectors {
        Sectors::new(2048)
    }
    fn limits(&self) -> Limits {
        Limits::default()
    }
    fn id(&self) -> DeviceId {
        DeviceId::Anonymous(std::ptr::from_ref(self) as usize)
    }
    fn name(&self) -> String {
        "failing".into()
    }
    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// A clock that a test moves.
#[allow(dead_code, reason = "not every test that uses this file has one")]
pub(crate) struct ByHand(pub(crate) std::sync::atomic::AtomicU64);

impl udm_io::Clock for ByHand {
    fn now(&self) -> udm_io::Nanos {
        udm_io::Nanos(self.0.load(Ordering::SeqCst))
    }
}
