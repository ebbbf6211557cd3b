//! How much memory copies take when writes to an origin with eight snapshots come as fast as they can.
//!
//! Nothing limits the writer: all of its writes are queued at once. The disks keep nothing of what is written, so that
//! only what udm holds counts.

use super::modelled::World;
use udm_base::{Sector, Sectors};
use udm_bench::Error;
use udm_bench::error::JobError;
use udm_core::TableSlot;
use udm_io::{Op, OpFlags};

pub(super) const SNAPSHOTS: usize = 8;
/// A write, in bytes.
const WRITE: u64 = 1 << 20;

/// What was seen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Found {
    /// Bytes of pages at most.
    pub(super) peak: u64,
    /// Bytes that were read of the origin.
    pub(super) read: u64,
    /// Bytes that were written to COW devices, their data alone.
    pub(super) written: u64,
}

/// Writes `total` bytes to the origin. Takes some seconds for 10 GiB.
pub(super) fn run(total: u64, chunk: u64) -> Result<Found, Error> {
    let world = World::new(1, total * (SNAPSHOTS as u64 + 1) * 2 + (8 << 30), None);
    let sectors = |bytes: u64| Sectors::covering(bytes);
    let cow = total + total / 16 + (64 << 20);
    let mut concise = format!("volume,,,,0 {} linear /disk0 0;", sectors(total));
    for n in 0..SNAPSHOTS {
        let at = sectors(cow * n as u64);
        concise += &format!("cow{n},,,,0 {} linear /disk1 {at};", sectors(cow));
        let (len, chunk) = (sectors(total), sectors(chunk));
        concise += &format!("snapshot{n},,,,0 {len} snapshot /dev/mapper/volume /dev/mapper/cow{n} P {chunk};");
    }
    concise += &format!("origin,,,,0 {} snapshot-origin /dev/mapper/volume;", sectors(total));
    let stack = world.stack(&concise)?;
    let failed = |e: udm_stack::StackError| Error::Stack(e.to_string());
    let channel = world.domain.channel().map_err(|e| JobError::from(e).of("origin"))?;
    let writes = total / WRITE;
    channel.set_depth(writes as usize);
    let origin = channel.attach(stack.device("origin").map_err(failed)?);
    for n in 0..writes {
        let (at, len) = (Sector::containing(n * WRITE), sectors(WRITE));
        let queued = channel.submit_range(origin, Op::WriteZeroes, OpFlags::NONE, at, len, n);
        assert!(queued, "the channel was made as deep");
    }
    let mut done = 0;
    while done < writes {
        channel.poll();
        while let Some(completion) = channel.completed() {
            if !completion.status.is_ok() {
                let (byte, bytes) = (completion.token * WRITE, WRITE as usize);
                return Err(JobError::Failed { op: Op::Write, byte, bytes, status: completion.status }.of("origin"));
            }
            done += 1;
        }
        channel.wait(None, &mut Vec::new()).map_err(|e| JobError::from(e).of("origin"))?;
    }
    let snapshot = stack.device("snapshot0").map_err(failed)?;
    let table = snapshot.table(TableSlot::Active);
    let said = table.as_ref().and_then(|table| table.targets().next()?.message(&["copy_stats"]).ok());
    let said = said.ok_or_else(|| Error::Stack("snapshot0: gives no copy_stats".into()))?;
    let value = |key: &str| {
        let found = said.split(' ').find_map(|word| word.strip_prefix(key)?.strip_prefix('=')?.parse().ok());
        found.ok_or_else(|| Error::Stack(format!("copy_stats: expected {key}, found {said:?}")))
    };
    Ok(Found { peak: value("pool_peak")?, read: value("bytes_read")?, written: value("bytes_written")? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_chunk_is_read_once_and_pages_are_bounded() {
        let total = 64 << 20;
        let found = run(total, 64 << 10).unwrap();
        assert_eq!((found.read, found.written), (total, SNAPSHOTS as u64 * total));
        assert!(found.peak <= 32 << 20 && found.peak > 0, "{found:?}");
    }
}
