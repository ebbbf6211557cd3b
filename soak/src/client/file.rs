//! A node of a device, used as programs use files: one request after the other.

use super::{Client, Request, What};
use rustix::fs::{FallocateFlags, fallocate, fdatasync};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// An open node.
pub struct Node {
    file: File,
}

impl Node {
    /// Opens the node at `path`.
    pub fn open(path: &Path) -> io::Result<Self> {
        Ok(Self { file: File::options().read(true).write(true).open(path)? })
    }

    fn one(&self, request: &mut Request) -> io::Result<()> {
        let (offset, length) = (request.offset, u64::from(request.length));
        match request.what {
            What::Read => {
                request.data.resize(request.length as usize, 0);
                self.file.read_exact_at(&mut request.data, offset)
            }
            What::Write { fua } => {
                self.file.write_all_at(&request.data, offset)?;
                if fua { Ok(fdatasync(&self.file)?) } else { Ok(()) }
            }
            What::Flush => Ok(fdatasync(&self.file)?),
            What::Trim => {
                Ok(fallocate(&self.file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, offset, length)?)
            }
            What::Zero => {
                Ok(fallocate(&self.file, FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE, offset, length)?)
            }
        }
    }
}

impl Client for Node {
    fn trims(&self) -> bool {
        true
    }

    fn execute(&mut self, batch: &mut [Request], moved: &mut dyn FnMut()) -> io::Result<()> {
        for request in batch {
            let answer = self.one(request);
            moved();
            match answer.as_ref().map_err(io::Error::raw_os_error) {
                Ok(()) => request.answer = Some(Ok(())),
                // What a mount says whose server has gone.
                Err(Some(libc::ENOTCONN | libc::ECONNABORTED | libc::ENODEV)) => return answer,
                Err(Some(errno)) => request.answer = Some(Err(errno)),
                Err(None) => return answer,
            }
        }
        Ok(())
    }
}
