//! The committed seeds of a target.

use std::io;
use std::path::{Path, PathBuf};

/// Seeds in order of their file names. Never empty: a target without any starts from no bytes.
pub struct Corpus(Vec<Vec<u8>>);

impl Corpus {
    /// Reads the seeds of target `name`.
    ///
    /// # Errors
    /// When its folder exists and cannot be read.
    pub fn load(name: &str) -> io::Result<Self> {
        let folder = here().join("seeds").join(name);
        let mut paths = match std::fs::read_dir(&folder) {
            Ok(entries) => entries.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<PathBuf>>>()?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(error),
        };
        // The order of a folder is the file system's; that of the inputs must not be.
        paths.sort();
        let mut seeds = paths.iter().map(std::fs::read).collect::<io::Result<Vec<_>>>()?;
        if seeds.is_empty() {
            seeds.push(Vec::new());
        }
        Ok(Self(seeds))
    }

    /// How many seeds there are.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "it never is")]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Seed number `index`.
    #[must_use]
    pub fn get(&self, index: usize) -> Option<&[u8]> {
        self.0.get(index).map(Vec::as_slice)
    }

    /// A corpus made of `seeds`, one of them at least.
    #[cfg(test)]
    pub(crate) fn of(seeds: &[&[u8]]) -> Self {
        Self(seeds.iter().map(|seed| seed.to_vec()).collect())
    }
}

/// Where this crate's sources are.
pub(crate) fn here() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}
