//! The null device, as the kernel's null_blk: it completes I/O after a given time and does nothing else, so that
//! what lies above can be measured.
//!
//! With `memory=1` it keeps what is written, and reads zeroes before. Without, reads give zeroes, or leave the memory
//! as it is when the submitter says that nobody minds ([`OpFlags::SCRATCH`]), as null_blk always does
//! (`null_handle_rq`, `drivers/block/null_blk/main.c`, 6.12): an export's buffers may hold what another client read. A
//! bio is served when it is submitted and completes after the latency: by a timer of its channel, or, submitted HIPRI
//! on a device with poll queues, when a poller finds it.

mod queue;
mod spec;

pub use spec::{NullSpec, NullSpecError};

use crate::polling::{Polls, QueueSet};
use crate::{Bio, BlockDevice, Cx, DeviceId, DirectAccess, Limits, Memory, Op, OpFlags, Status};
use queue::NullQueue;
use std::any::Any;
use std::io;
use std::sync::Arc;
use udm_base::{Sector, Sectors};

/// A null device. Every one is a device of its own, also when the spec is the same.
pub struct NullDevice {
    spec: NullSpec,
    latency_ns: u64,
    memory: Option<Memory>,
    queues: Arc<QueueSet>,
}

impl NullDevice {
    /// The device of `spec`. Fails when there is no address space for its memory.
    pub fn new(spec: NullSpec) -> io::Result<Self> {
        let memory = spec.memory.then(|| Memory::new(spec.size)).transpose()?;
        let queues = QueueSet::new(spec.poll_queues, || Ok(NullQueue::default()));
        Ok(Self { spec, latency_ns: u64::from(spec.latency_us) * 1000, memory, queues })
    }

    /// What it is like.
    pub fn spec(&self) -> &NullSpec {
        &self.spec
    }
}

impl BlockDevice for NullDevice {
    #[inline]
    fn submit(&self, cx: &Cx<'_>, mut bio: Bio) -> Option<Bio> {
        if let Some(memory) = &self.memory {
            let status = memory.serve(&bio);
            if !status.is_ok() {
                bio.end(status);
                return None;
            }
        }
        if self.memory.is_none() && bio.op() == Op::Read && !bio.flags().contains(OpFlags::SCRATCH) {
            // What the memory held last may be somebody else's: an export reuses its buffers.
            bio.fill(0);
        }
        if bio.flags().contains(OpFlags::HIPRI) && !self.queues.is_empty() {
            bio.set_word(if self.latency_ns == 0 { 0 } else { cx.now().after(self.latency_ns).0 });
            match Polls::of(cx).push(cx, &self.queues, bio) {
                Ok(()) => return None,
                // It completes by interrupt.
                Err(back) => bio = back,
            }
        }
        if self.latency_ns == 0 {
            bio.end(Status::Ok);
        } else {
            cx.at(cx.now().after(self.latency_ns), bio, |_, bio| bio.end(Status::Ok));
        }
        None
    }

    fn sectors(&self) -> Sectors {
        self.spec.size
    }

    fn limits(&self) -> Limits {
        Limits::default()
    }

    fn id(&self) -> DeviceId {
        DeviceId::Anonymous(std::ptr::from_ref(self) as usize)
    }

    fn name(&self) -> String {
        NullSpec { poll_queues: self.queues.len(), ..self.spec }.to_string()
    }

    fn direct_access<'a>(
        &'a self,
        _: &'a Cx<'_>,
        op: Op,
        sector: Sector,
        sectors: Sectors,
    ) -> Option<DirectAccess<'a>> {
        self.memory.as_ref().filter(|_| self.latency_ns == 0)?.direct_access(op, sector, sectors)
    }

    fn memory(&self) -> Option<&Memory> {
        self.memory.as_ref()
    }

    fn can_poll(&self) -> bool {
        !self.queues.is_empty()
    }

    fn set_poll_queues(&self, n: u32) -> bool {
        self.queues.set_len(n);
        true
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
