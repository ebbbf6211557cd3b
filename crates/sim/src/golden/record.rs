//! Reading a record: `tests/goldens/thin/README.md` tells its lines.

use super::unpack;
use std::path::{Path, PathBuf};

/// What the kernel was told and printed, and the images beside it.
pub struct Record {
    /// Its name.
    pub name: String,
    /// All of it.
    pub text: String,
    directory: PathBuf,
}

impl Record {
    /// The records of `thin` or `snapshot`, by name.
    ///
    /// # Panics
    /// When they cannot be read, or there are next to none.
    pub fn all(kind: &str) -> Vec<Self> {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/goldens").join(kind);
        let entries = std::fs::read_dir(&directory).unwrap_or_else(|e| panic!("{}: {e}", directory.display()));
        let mut records: Vec<Self> = entries
            .map(|entry| entry.expect("an entry").path())
            .filter(|path| path.extension().is_some_and(|extension| extension == "txt"))
            .map(|path| Self {
                name: path.file_stem().unwrap_or_default().to_string_lossy().into_owned(),
                text: std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display())),
                directory: directory.clone(),
            })
            .collect();
        records.sort_by(|a, b| a.name.cmp(&b.name));
        assert!(records.len() > 5, "there are records of {kind}");
        records
    }

    /// The image of one of its devices; nothing when there is none.
    ///
    /// # Panics
    /// When it does not unpack.
    pub fn image(&self, what: &str) -> Option<Vec<u8>> {
        let packed = std::fs::read(self.directory.join(format!("{}.{what}.pages.gz", self.name))).ok()?;
        Some(unpack(&packed).unwrap_or_else(|e| panic!("{}.{what}: {e}", self.name)))
    }

    /// The words of the lines that begin with `word`, in order.
    pub fn lines<'a>(&'a self, word: &'a str) -> impl DoubleEndedIterator<Item = Vec<&'a str>> {
        self.text.lines().map(|line| line.split(' ').collect::<Vec<_>>()).filter(move |words| words[0] == word)
    }

    /// The last checksum of a volume.
    pub fn sum(&self, volume: &str) -> Option<&str> {
        self.lines("volume").rfind(|words| words[1] == volume).and_then(|words| words.get(3).copied())
    }
}
