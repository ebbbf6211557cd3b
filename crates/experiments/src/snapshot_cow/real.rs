//! The file on real files, with direct I/O where the file system has it.

use super::modelled::Subject;
use super::workload::{Cache, Job, Kind, Order};
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use udm_base::Sectors;
use udm_bench::Error;
use udm_bench::stack::in_concise;
use udm_io::Domain;
use udm_stack::Stack;

/// Writes that are on their way at a time, in bytes.
const WINDOW: u64 = 32 << 20;
/// What is zeroed of the COW file, so that the next snapshot makes a new store.
const HEADER: usize = 1 << 20;

/// Two files that were written once, so that none is the first to touch its blocks.
pub(super) struct Files {
    volume: PathBuf,
    cow: PathBuf,
    /// Bytes.
    volume_len: u64,
    total: u64,
}

impl Files {
    /// Makes them in `folder`, for files of `total` bytes. Blocks.
    pub(super) fn new(folder: &Path, total: u64) -> Result<Self, Error> {
        let (volume, cow) = (folder.join("snapshot-cow.volume"), folder.join("snapshot-cow.cow"));
        let longest = Job { kind: Kind::Create, order: Order::Sequential, total, size: 1 << 20 };
        let volume_len = longest.reaches().next_multiple_of(1 << 20);
        let files = Self { volume, cow, volume_len, total };
        for (path, len, byte) in
            [(&files.volume, volume_len, 0x5a), (&files.cow, volume_len + volume_len / 16 + (16 << 20), 0)]
        {
            fill(path, len, byte)
                .map_err(|source| Error::System { what: format!("{}: filling it", path.display()), source })?;
        }
        Ok(files)
    }

    /// MB/s of a file that is written over sequentially by writes of `size`, with a flush at the end. Blocks.
    pub(super) fn speed(&self, domain: &Domain, subject: Subject, chunk: u64, size: u64) -> Result<f64, Error> {
        let reset = File::options().write(true).open(&self.cow).and_then(|file| {
            file.write_all_at(&vec![0; HEADER], 0)?;
            file.sync_all()
        });
        reset.map_err(|source| Error::System { what: format!("{}: clearing it", self.cow.display()), source })?;
        let stack = Stack::new(domain, &self.concise(subject, chunk)?).map_err(|e| Error::Stack(e.to_string()))?;
        let device = stack.device(stack.top()).map_err(|e| Error::Stack(e.to_string()))?;
        let job = Job { kind: Kind::Update, order: Order::Sequential, total: self.total, size };
        let times = job.run(domain, device, Cache::none(WINDOW), 1).map_err(|e| e.of(stack.top()))?;
        Ok(self.total as f64 * 1e3 / times.synced.max(1) as f64)
    }

    fn concise(&self, subject: Subject, chunk: u64) -> Result<String, Error> {
        let (len, chunk) = (Sectors::covering(self.volume_len), Sectors::covering(chunk));
        let (volume, cow) = (in_concise(&self.volume)?, in_concise(&self.cow)?);
        let mut text = format!("volume,,,,0 {len} linear {volume} 0;");
        if subject != Subject::Plain {
            text += &format!("snapshot,,,,0 {len} snapshot /dev/mapper/volume {cow} P {chunk};");
        }
        if subject == Subject::Origin {
            text += &format!("origin,,,,0 {len} snapshot-origin /dev/mapper/volume;");
        }
        Ok(text)
    }
}

fn fill(path: &Path, len: u64, byte: u8) -> io::Result<()> {
    let mut file = File::create(path)?;
    let block = vec![byte; 1 << 20];
    for _ in 0..len.div_ceil(1 << 20) {
        file.write_all(&block)?;
    }
    file.sync_all()
}

impl Drop for Files {
    fn drop(&mut self) {
        // What cannot be removed now goes with the folder.
        let _ = fs::remove_file(&self.volume);
        let _ = fs::remove_file(&self.cow);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_after_the_other_on_the_same_files() {
        let folder = tempfile::tempdir().unwrap();
        let files = Files::new(folder.path(), 2 << 20).unwrap();
        let domain = Domain::default();
        for subject in [Subject::Origin, Subject::Snapshot, Subject::Origin, Subject::Plain] {
            let speed = files.speed(&domain, subject, 8192, 65536).unwrap();
            assert!(speed.is_finite() && speed > 0.0, "{subject}");
        }
        let at = |file: &PathBuf| fs::metadata(file).is_ok();
        assert!(at(&files.volume) && at(&files.cow));
        drop(files);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
