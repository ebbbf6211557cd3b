//! A log, from the first table that names its device to the last.

use super::order::{Event, Shared, complete, leave};
use super::writer::{Writer, run};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use udm_base::Errno;
use udm_core::Error;
use udm_formats::log_writes::{BlockSize, Entry, Layout};
use udm_io::{Bio, BlockDevice, Cx, DeviceId, Domain};
use udm_worker::Worker;

/// What is logged when the last table goes (`log_writes_dtr`).
const END: &[u8] = b"dm-log-writes-end";

/// A log, which the tables of a device share. It ends with the last of them.
pub(super) struct Log {
    worker: Arc<Worker<Shared>>,
    /// A table with it has been resumed.
    active: AtomicBool,
}

/// Every log that is being written, with its device. One of another device is never held from here, not for a moment:
/// whoever lets go of the last hold writes its end.
static LOGS: Mutex<Vec<(DeviceId, Weak<Log>)>> = Mutex::new(Vec::new());

impl std::ops::Deref for Log {
    type Target = Shared;
    fn deref(&self) -> &Shared {
        &self.worker
    }
}

impl Log {
    /// The log of `dev` on `log`: the one that is being written, or a new one. May block briefly.
    pub(super) fn of(
        domain: &Domain,
        dev: Arc<dyn BlockDevice>,
        log: Arc<dyn BlockDevice>,
    ) -> Result<Arc<Self>, (Errno, String)> {
        if dev.id() == log.id() {
            return Err((Errno::EINVAL, format!("{} cannot be its own log", dev.name())));
        }
        // Before the lock, so that it is let go of after it.
        let known: Option<Arc<Self>>;
        let mut logs = LOGS.lock().unwrap_or_else(PoisonError::into_inner);
        logs.retain(|(_, known)| known.strong_count() > 0);
        let mut same = logs.iter().filter(|(id, _)| *id == log.id()).filter_map(|(_, known)| known.upgrade());
        known = same.find(|known| known.worker.domain() == domain);
        if let Some(known) = &known {
            if known.dev.id() == dev.id() {
                return Ok(known.clone());
            }
            let why = format!("{} is the log of {}; a log has one device", log.name(), known.dev.name());
            return Err((Errno::EBUSY, why));
        }
        let bytes = dev.limits().logical_block_size;
        let Some(block) = BlockSize::new(bytes) else {
            let why = format!("{} has logical blocks of {bytes} bytes, expected 512 to 65536", dev.name());
            return Err((Errno::EINVAL, why));
        };
        let layout = Layout::new(block, log.sectors());
        let shared = Shared::new(dev, log, &layout);
        let failed = |e: std::io::Error| (Errno::of(&e), e.to_string());
        let worker = Worker::new(domain, shared, &[]).map_err(failed)?;
        worker.start(|events| run(Writer::new(worker.clone(), layout), events)).map_err(failed)?;
        let made = Arc::new(Self { worker, active: AtomicBool::new(false) });
        logs.push((made.log.id(), Arc::downgrade(&made)));
        Ok(made)
    }

    /// The log device.
    pub(super) fn dev(&self) -> &dyn BlockDevice {
        &*self.log
    }

    /// The unit of the log.
    pub(super) fn block(&self) -> BlockSize {
        self.block
    }

    /// From here on its end is logged.
    pub(super) fn activate(&self) {
        self.active.store(true, SeqCst);
    }

    /// A bio is done, whether it went well or not.
    pub(super) fn done(&self, cx: &Cx<'_>, number: u64) {
        if complete(&self.worker, number) {
            self.worker.kick(cx);
        }
    }

    /// A FUA write has been written to a device without FUA: it is done after a flush of that.
    pub(super) fn flush_after(&self, cx: &Cx<'_>, number: u64, bio: Bio) {
        self.worker.post(cx, Event::FlushAfter(number, bio));
    }

    /// Logs a mark, and waits until it is on the log device, or the log has ended. Blocks.
    pub(super) fn mark(&self, text: &[u8]) -> Result<(), Error> {
        if let Some(block) = self.allocate(Entry::mark(text, self.block), 0) {
            leave(&self.worker, vec![block]);
        }
        self.worker.call(Event::Settled)
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        if self.active.load(SeqCst) {
            // Bios are not under way any more: what waits for a flush will never see one.
            leave(&self.worker, self.take_unflushed());
            if let Err(e) = self.mark(END) {
                tracing::error!("log-writes: the log's end is not written: {}", e.message);
            }
        }
        self.worker.stop();
    }
}
