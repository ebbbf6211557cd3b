//! The kernel's own devices in memory, where they exist.

use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags, open};
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::Path;
use udm_bench::{Error, Subject};
use udm_io::Domain;

/// Each with the name of what it is, and what the seed's author found on it at 32 KiB, reads and writes together.
pub(super) const DEVICES: [(&str, &str, Option<f64>); 3] = [
    ("/dev/ram0", "the kernel's brd", Some(668e3)),
    ("/dev/nullb0", "the kernel's null_blk", Some(674e3)),
    ("/dev/pmem0", "the kernel's pmem", None),
];

/// Bytes at either end of a device that have to be zero.
const EMPTY: usize = 1 << 20;

/// The device, held for nobody else, or why it cannot be used: what holds data is not written to.
pub(super) fn device(domain: &Domain, path: &str, name: &str) -> Result<Result<(Subject, OwnedFd), String>, Error> {
    let Ok(found) = Path::new(path).metadata() else { return Ok(Err(format!("there is no {path}"))) };
    if !found.file_type().is_block_device() {
        return Ok(Err(format!("{path} is no block device")));
    }
    let held = match open(path, OFlags::RDWR | OFlags::EXCL | OFlags::CLOEXEC, Mode::empty()) {
        Ok(held) => held,
        Err(e) => return Ok(Err(format!("{path}: {}", io::Error::from(e)))),
    };
    let subject = Subject::open(domain, name, path, false)?;
    let bytes = subject.sectors().checked_bytes().unwrap_or(0);
    match is_empty(Path::new(path), bytes) {
        Ok(true) => Ok(Ok((subject, held))),
        Ok(false) => Ok(Err(format!("{path} holds data"))),
        Err(e) => Ok(Err(format!("{path}: {e}"))),
    }
}

fn is_empty(path: &Path, bytes: u64) -> io::Result<bool> {
    let file = File::open(path)?;
    let len = EMPTY.min(usize::try_from(bytes).unwrap_or(EMPTY));
    let mut buffer = vec![0; len];
    for at in [0, bytes - len as u64] {
        file.read_exact_at(&mut buffer, at)?;
        if !udm_io::is_zero(&buffer) {
            return Ok(false);
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_device_or_not_empty() {
        let domain = Domain::default();
        let why = |path: &str| device(&domain, path, "x").unwrap().err().unwrap();
        assert!(why("/no/such").contains("no /no/such"));
        assert!(why("/dev/null").contains("no block device"));
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let mut data = vec![0; 3 << 20];
        std::fs::write(&path, &data).unwrap();
        assert!(is_empty(&path, 3 << 20).unwrap());
        *data.last_mut().unwrap() = 1;
        std::fs::write(&path, &data).unwrap();
        assert!(!is_empty(&path, 3 << 20).unwrap());
    }
}
