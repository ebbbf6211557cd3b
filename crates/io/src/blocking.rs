//! Plain reads and writes that wait, for control paths and tools.

use crate::{Attached, BlockDevice, Channel, Cx, Domain, Extent, ExtentKind, Op, OpFlags, Questions, Segment, Status};
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use udm_base::{SECTOR_SIZE, Sector, Sectors};

/// Reads and writes a device one request at a time. Every call blocks.
///
/// It does so on a channel of its own, where it sleeps until the device is done. When no channel is left it is a
/// visitor of the one that control threads share, and looks again and again: a command must not fail because clients
/// have taken all.
pub struct BlockingIo(Via);

enum Via {
    Own { channel: Channel, dev: Attached, held: Arc<dyn BlockDevice> },
    Shared { domain: Domain, dev: Arc<dyn BlockDevice>, sectors: Sectors },
}

impl BlockingIo {
    /// Holds `dev` until dropped.
    ///
    /// # Panics
    /// When the device is of another domain.
    pub fn new(domain: &Domain, dev: Arc<dyn BlockDevice>) -> io::Result<Self> {
        let Ok(channel) = domain.channel() else {
            assert!(dev.is_for(domain), "{} is of another domain", dev.name());
            let sectors = dev.sectors();
            return Ok(Self(Via::Shared { domain: domain.clone(), dev, sectors }));
        };
        let attached = channel.attach(dev.clone());
        Ok(Self(Via::Own { channel, dev: attached, held: dev }))
    }

    /// The device's size when it was opened.
    pub fn sectors(&self) -> Sectors {
        match &self.0 {
            Via::Own { dev, .. } => dev.sectors(),
            Via::Shared { sectors, .. } => *sectors,
        }
    }

    /// Reads from `sector`.
    ///
    /// # Panics
    /// When `buf` is not whole sectors.
    pub fn read(&self, sector: Sector, buf: &mut [u8]) -> Result<(), Status> {
        self.transfer(Op::Read, OpFlags::NONE, sector, buf.as_mut_ptr(), buf.len())
    }

    /// Writes at `sector`.
    ///
    /// # Panics
    /// When `buf` is not whole sectors.
    pub fn write(&self, sector: Sector, buf: &[u8], flags: OpFlags) -> Result<(), Status> {
        // A device only reads the memory of a write; segments have one pointer type for both directions.
        self.transfer(Op::Write, flags, sector, buf.as_ptr().cast_mut(), buf.len())
    }

    /// Flushes the device.
    pub fn flush(&self) -> Result<(), Status> {
        self.range(Op::Flush, OpFlags::NONE, Sector::ZERO, Sectors::ZERO)
    }

    /// Does an operation without payload.
    pub fn range(&self, op: Op, flags: OpFlags, sector: Sector, sectors: Sectors) -> Result<(), Status> {
        if op.has_payload() {
            return Err(Status::Invalid);
        }
        // SAFETY: there is no memory.
        unsafe { self.perform(op, flags, sector, sectors, &[Segment::EMPTY]) }
    }

    /// What a range holds, as [`BlockDevice::extents`] tells. Without a channel of its own it does not ask, and all is
    /// data.
    pub fn extents(&self, sector: Sector, sectors: Sectors) -> Vec<Extent> {
        match &self.0 {
            Via::Own { channel, held, .. } => Questions::wait_for(channel, &**held, sector, sectors),
            Via::Shared { .. } => vec![Extent { sectors, kind: ExtentKind::Data }],
        }
    }

    fn transfer(&self, op: Op, flags: OpFlags, sector: Sector, at: *mut u8, len: usize) -> Result<(), Status> {
        assert_eq!(len % SECTOR_SIZE, 0, "whole sectors");
        let sectors = Sectors::in_bytes(len as u64);
        // SAFETY: the caller lends the memory until this returns, which is after the completion.
        unsafe { self.perform(op, flags, sector, sectors, &[Segment::new(at, len)]) }
    }

    /// Returns after the completion.
    ///
    /// # Safety
    /// As [`Segment::new`], until this returns.
    unsafe fn perform(
        &self,
        op: Op,
        flags: OpFlags,
        sector: Sector,
        sectors: Sectors,
        segs: &[Segment],
    ) -> Result<(), Status> {
        let status = match &self.0 {
            Via::Own { channel, dev, .. } => {
                // SAFETY: the caller's promise, and the list stays as long.
                while !unsafe { channel.submit_vectored(*dev, op, flags, sector, sectors, segs, 0) } {
                    step(channel);
                }
                loop {
                    if let Some(done) = channel.completed() {
                        break done.status;
                    }
                    step(channel);
                }
            }
            Via::Shared { domain, dev, .. } => {
                let ended = Arc::new(Mutex::new(None));
                let word = Arc::into_raw(ended.clone());
                let level = Cx::internal_level(&**dev);
                domain.drain_with(|cx| {
                    // SAFETY: the caller's promise, and what is here stays until the completion, which is waited for
                    // below.
                    unsafe { cx.submit_internal(level, &**dev, op, flags, (sector, sectors), segs, note, word.cast()) }
                        .then_some(())
                });
                domain.drain_with(|_| ended.lock().unwrap_or_else(PoisonError::into_inner).take())
            }
        };
        if status.is_ok() { Ok(()) } else { Err(status) }
    }
}

/// Leaves how it went for who waits.
///
/// # Safety
/// `word` is of `Arc::into_raw`, and this its one use.
unsafe fn note(_: &Cx<'_>, status: Status, word: *const ()) {
    // SAFETY: the contract.
    let ended = unsafe { Arc::from_raw(word.cast::<Mutex<Option<Status>>>()) };
    *ended.lock().unwrap_or_else(PoisonError::into_inner) = Some(status);
}

fn step(channel: &Channel) {
    if channel.poll() == 0 && channel.wait(None, &mut Vec::new()).is_err() {
        std::thread::yield_now();
    }
}
