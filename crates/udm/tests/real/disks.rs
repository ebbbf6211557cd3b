//! Files for devices to stand on, and images to copy.

use std::fs::File;
use std::path::{Path, PathBuf};

/// A directory of one file system, gone with the value.
pub(crate) struct Disk(tempfile::TempDir);

impl Disk {
    /// On the file system that the build is on: a real one, mostly.
    pub(crate) fn of_build() -> Self {
        Self::at(env!("CARGO_TARGET_TMPDIR")).expect("a directory beside the build")
    }

    /// On tmpfs; says so where there is none.
    pub(crate) fn of_memory() -> Option<Self> {
        let disk = Self::at("/dev/shm");
        if disk.is_none() {
            println!("SKIP a tmpfs: /dev/shm is not there, or not for writing");
        }
        disk
    }

    /// In the directory `parent`; `None` when that cannot be.
    pub(crate) fn at(parent: &str) -> Option<Self> {
        tempfile::tempdir_in(parent).ok().map(Self)
    }

    /// The path of a file in it.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// An empty file of `size` bytes; its name as a table has it.
    pub(crate) fn file(&self, name: &str, size: u64) -> String {
        let path = self.path(name);
        File::create(&path).and_then(|file| file.set_len(size)).expect("a file for a device");
        in_table(&path)
    }
}

/// A path as an argument of a table: a backslash keeps a space from ending it.
pub(crate) fn in_table(path: &Path) -> String {
    path.to_str().expect("a path of text").replace('\\', "\\\\").replace(' ', "\\ ")
}

/// Writes an image of `size` bytes: data, a long hole, data, and a few odd sectors in between.
pub(crate) fn write_image(path: &Path, size: usize) {
    let mut bytes = vec![0u8; size];
    let data = [0..size / 8, size / 2..size / 2 + size / 5, size * 9 / 10..size];
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    for byte in data.into_iter().flatten().chain((size / 4..size / 4 + 1536).step_by(3)) {
        // xorshift64: as good as random here, and the same every time.
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes[byte] = state as u8;
    }
    std::fs::write(path, bytes).expect("room for an image");
}
