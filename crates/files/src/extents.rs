//! Where a file has holes.

use crate::backing::Backing;
use rustix::fs::SeekFrom;
use udm_base::{Sector, Sectors};
use udm_io::{Extent, ExtentKind};

/// Runs that one question is answered with at most. Each costs two system calls, and most who ask want the first alone.
const RUNS: usize = 16;

/// The data and holes of a range, by SEEK_DATA and SEEK_HOLE; file systems show what is allocated but was never
/// written as a hole too. A sector that is partly a hole counts as data. What
/// lies beyond the file's end, or where the file system does not tell, counts as data.
pub(crate) fn of(backing: &Backing, sector: Sector, sectors: Sectors) -> Vec<Extent> {
    let (mut at, end) = (sector.bytes(), (sector + sectors).bytes());
    let mut runs: Vec<Extent> = Vec::new();
    while at < end && runs.len() < RUNS {
        let (next, kind) = next_run(backing, at, end);
        runs.push(Extent { sectors: Sectors::in_bytes(next - at), kind });
        at = next;
    }
    runs
}

/// The end of the run at byte `at`, no further than `end` and past `at`, and what it is.
fn next_run(backing: &Backing, at: u64, end: u64) -> (u64, ExtentKind) {
    const SECTOR: u64 = udm_base::SECTOR_SIZE as u64;
    match rustix::fs::seek(backing.fd(), SeekFrom::Data(at)) {
        Ok(data) => {
            let data = data / SECTOR * SECTOR;
            if data > at {
                return (data.min(end), ExtentKind::Hole);
            }
            let hole = rustix::fs::seek(backing.fd(), SeekFrom::Hole(at)).unwrap_or(end);
            (hole.next_multiple_of(SECTOR).clamp(at + SECTOR, end), ExtentKind::Data)
        }
        // No data from here to the end of the file, if the range lies within it.
        Err(rustix::io::Errno::NXIO) if backing.bytes() >= end => (end, ExtentKind::Hole),
        Err(_) => (end, ExtentKind::Data),
    }
}
