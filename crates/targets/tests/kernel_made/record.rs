//! Reading a record: `tests/goldens/thin/README.md` tells its lines.

use std::path::{Path, PathBuf};

/// A record and the images beside it.
pub(crate) struct Record {
    pub(crate) name: String,
    text: String,
    directory: PathBuf,
}

/// A line that says something to do or to expect.
pub(crate) enum Line<'a> {
    /// A command, and whether it succeeded.
    Command(Vec<&'a str>, bool),
    /// A volume's size and checksum.
    Volume(&'a str, u64, &'a str),
    /// A device's status.
    Status(&'a str, &'a str),
}

impl Record {
    /// The records of a directory, by name.
    pub(crate) fn all(kind: &str) -> Vec<Self> {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/goldens").join(kind);
        let mut records: Vec<Self> = std::fs::read_dir(&directory)
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .filter(|path| path.extension().is_some_and(|e| e == "txt"))
            .map(|path| Self {
                name: path.file_stem().unwrap().to_str().unwrap().to_owned(),
                text: std::fs::read_to_string(&path).unwrap(),
                directory: directory.clone(),
            })
            .collect();
        records.sort_by(|a, b| a.name.cmp(&b.name));
        assert!(records.len() > 5, "there are records of {kind}");
        records
    }

    /// The image of one of its devices.
    pub(crate) fn image(&self, what: &str) -> Option<Vec<u8>> {
        let packed = std::fs::read(self.directory.join(format!("{}.{what}.pages.gz", self.name))).ok()?;
        Some(udm_sim::golden::unpack(&packed).unwrap())
    }

    /// The words of the lines that begin with `word`.
    pub(crate) fn lines<'a>(&'a self, word: &'a str) -> impl DoubleEndedIterator<Item = Vec<&'a str>> {
        self.text.lines().map(|line| line.split(' ').collect::<Vec<_>>()).filter(move |words| words[0] == word)
    }

    /// The commands, in order.
    pub(crate) fn commands(&self) -> impl DoubleEndedIterator<Item = Vec<&str>> + ExactSizeIterator {
        self.lines("+").map(|words| words[1..].to_vec()).collect::<Vec<_>>().into_iter()
    }

    /// Every line that counts, in order.
    pub(crate) fn parsed(&self) -> Vec<Line<'_>> {
        let mut lines: Vec<Line<'_>> = Vec::new();
        for line in self.text.lines() {
            let words: Vec<&str> = line.split(' ').collect();
            match words[0] {
                "+" => lines.push(Line::Command(words[1..].to_vec(), true)),
                "?" => {
                    if let Some(Line::Command(_, succeeds)) = lines.last_mut() {
                        *succeeds = false;
                    }
                }
                "volume" => lines.push(Line::Volume(words[1], words[2].parse().unwrap(), words[3])),
                "status" => lines.push(Line::Status(words[1], line.splitn(3, ' ').nth(2).unwrap())),
                _ => {}
            }
        }
        lines
    }
}
