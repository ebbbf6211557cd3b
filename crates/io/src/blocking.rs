//! Plain reads and writes that wait, for control paths and tools.

use crate::{Attached, BlockDevice, Channel, Domain, Extent, Op, OpFlags, Questions, Segment, Status};
use std::io;
use std::sync::Arc;
use udm_base::{SECTOR_SIZE, Sector, Sectors};

/// Reads and writes a device one request at a time, on a channel of its own. Every call blocks.
pub struct BlockingIo {
    channel: Channel,
    dev: Attached,
    held: Arc<dyn BlockDevice>,
}

impl BlockingIo {
    /// Holds `dev` until dropped.
    pub fn new(domain: &Domain, dev: Arc<dyn BlockDevice>) -> io::Result<Self> {
        let channel = domain.channel()?;
        let attached = channel.attach(dev.clone());
        Ok(Self { channel, dev: attached, held: dev })
    }

    /// The device's size when it was opened.
    pub fn sectors(&self) -> Sectors {
        self.dev.sectors()
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
        while !self.channel.submit_range(self.dev, op, flags, sector, sectors, 0) {
            self.step();
        }
        self.finish()
    }

    /// What a range holds, as [`BlockDevice::extents`] tells.
    pub fn extents(&self, sector: Sector, sectors: Sectors) -> Vec<Extent> {
        Questions::wait_for(&self.channel, &*self.held, sector, sectors)
    }

    fn transfer(&self, op: Op, flags: OpFlags, sector: Sector, at: *mut u8, len: usize) -> Result<(), Status> {
        assert_eq!(len % SECTOR_SIZE, 0, "whole sectors");
        let sectors = Sectors::in_bytes(len as u64);
        // SAFETY: the caller lends the memory until this returns, which is after the completion.
        let segs = [unsafe { Segment::new(at, len) }];
        // SAFETY: as above, and `segs` stays as long.
        while !unsafe { self.channel.submit_vectored(self.dev, op, flags, sector, sectors, &segs, 0) } {
            self.step();
        }
        self.finish()
    }

    fn finish(&self) -> Result<(), Status> {
        loop {
            if let Some(done) = self.channel.completed() {
                return if done.status.is_ok() { Ok(()) } else { Err(done.status) };
            }
            self.step();
        }
    }

    fn step(&self) {
        if self.channel.poll() == 0 && self.channel.wait(None, &mut Vec::new()).is_err() {
            std::thread::yield_now();
        }
    }
}
