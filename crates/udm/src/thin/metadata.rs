//! A metadata device as a file: locked while it is read or written, so that nobody's transaction is seen half.

use std::fs::File;
use std::future::ready;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use udm_files::OpenErrorKind;
use udm_io::{BlockDevice, Domain};
use udm_pdata::{BLOCK_SIZE, Block, BlockIo, IoError, IoFuture};
use udm_stack::OpenOptions;

/// What is to be done with it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Access {
    /// Nobody may write meanwhile.
    Read,
    /// Somebody may: what is read does not change. A metadata snapshot.
    ReadShared,
    /// Nobody may read or write meanwhile.
    Write,
}

/// See the module.
struct Metadata {
    file: File,
    blocks: u64,
    /// Holds the lock. What is read goes through the page cache, which reads ahead.
    _lock: Arc<dyn BlockDevice>,
}

/// Opens a file or block device.
pub(super) fn open(path: &Path, access: Access) -> Result<Arc<dyn BlockIo>, String> {
    let name = path.to_str().ok_or_else(|| format!("{path:?} is not UTF-8"))?;
    let cwd = std::env::current_dir().unwrap_or_default();
    // Not a URI or M:m, whatever it looks like.
    let spec = cwd.join(name);
    let spec = spec.to_str().ok_or_else(|| format!("{spec:?} is not UTF-8"))?;
    let read_only = access != Access::Write;
    let options = OpenOptions {
        read_only,
        exclusive: access != Access::ReadShared,
        cwd: cwd.clone(),
        ..OpenOptions::new(&Domain::default())
    };
    let lock = udm_stack::open_beneath(spec, &options).map_err(|error| match (error.kind(), access) {
        (OpenErrorKind::Busy, Access::Read) => {
            format!("{error}; a live pool's metadata can be read as of a metadata snapshot: reserve one, and give -m")
        }
        _ => error.to_string(),
    })?;
    let file = File::options().read(true).write(!read_only).open(spec).map_err(|error| format!("{name}: {error}"))?;
    let bytes = lock.sectors().bytes();
    let blocks = bytes / BLOCK_SIZE as u64;
    if blocks == 0 {
        return Err(format!("{name} has {bytes} bytes, expected {BLOCK_SIZE} at least: these are no pool's metadata"));
    }
    Ok(Arc::new(Metadata { file, blocks, _lock: lock }))
}

impl Metadata {
    fn write_one(&self, at: u64, block: &Block) -> Result<(), IoError> {
        if at >= self.blocks {
            return Err(IoError::PastEnd);
        }
        self.file.write_all_at(&block.0, at * BLOCK_SIZE as u64).map_err(|_| IoError::Failed)
    }

    fn sync(&self) -> Result<(), IoError> {
        self.file.sync_data().map_err(|_| IoError::Failed)
    }
}

impl BlockIo for Metadata {
    fn blocks(&self) -> u64 {
        self.blocks
    }

    fn read(&self, at: u64, mut into: Box<Block>) -> IoFuture<'_, Box<Block>> {
        if at >= self.blocks {
            return Box::pin(ready(Err(IoError::PastEnd)));
        }
        let read = self.file.read_exact_at(&mut into.0, at * BLOCK_SIZE as u64).map_err(|_| IoError::Failed);
        Box::pin(ready(read.map(|()| into)))
    }

    fn write(&self, blocks: Vec<(u64, Box<Block>)>) -> IoFuture<'_, Vec<(u64, Box<Block>)>> {
        let written = blocks.iter().try_for_each(|(at, block)| self.write_one(*at, block));
        Box::pin(ready(written.map(|()| blocks)))
    }

    fn flush(&self) -> IoFuture<'_, ()> {
        Box::pin(ready(self.sync()))
    }

    fn write_fua(&self, at: u64, block: Box<Block>) -> IoFuture<'_, Box<Block>> {
        let written = self.write_one(at, &block).and_then(|()| self.sync());
        Box::pin(ready(written.map(|()| block)))
    }
}
