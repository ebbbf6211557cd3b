//! A file system with a source tree in it: files of the sizes, numbers and contents that a program's sources have, the
//! same for the same seed.

use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::process::Command;
use udm_bench::Error;
use udm_bench::rng::Rng;

/// How much there is.
#[derive(Clone, Copy)]
pub(super) struct Size {
    /// Of the file system, in bytes.
    pub(super) image: u64,
    pub(super) files: u64,
}

const WORDS: [&str; 32] = [
    "static", "int", "struct", "return", "if", "for", "while", "unsigned", "const", "void", "sector", "bio", "table",
    "target", "block", "page", "list", "lock", "device", "error", "length", "offset", "count", "flags", "(", ")", "{",
    "}", "=", "->", ";\n", "\n\t",
];

/// A file's text: words of a language like C. From a few hundred bytes to 120 KiB, most of it short.
fn text(random: &mut Rng) -> Vec<u8> {
    let magnitude = 8 + random.below(9);
    let length = (1 << magnitude) + random.below(1 << magnitude) as usize;
    let mut text = Vec::with_capacity(length + 16);
    while text.len() < length {
        // Eight words a number.
        let mut bits = random.draw();
        for _ in 0..8 {
            text.extend_from_slice(WORDS[(bits % 32) as usize].as_bytes());
            text.push(b' ');
            bits >>= 5;
        }
    }
    text
}

/// Makes `folder/tree.img`, an ext4 file system with a tree in it, by `mkfs.ext4 -d`, which needs no root. What mkfs
/// did not write is a hole. Blocks; `told` hears how far it is.
pub(super) fn make(folder: &Path, size: Size, seed: u64, told: impl Fn(&str)) -> Result<PathBuf, Error> {
    let failed = |what: String| move |source| Error::System { what, source };
    let tree = folder.join("tree");
    let mut random = Rng::new(seed, 0);
    for number in 0..size.files {
        if number % 500 == 0 {
            told(&format!("writing a source tree: {number} of {} files", size.files));
        }
        let directory = tree.join(format!("lib{:02}", number / 400)).join(format!("part{:02}", number / 40 % 10));
        let path = directory.join(format!("file{number:05}.c"));
        fs::create_dir_all(&directory).map_err(failed(format!("making {}", directory.display())))?;
        fs::write(&path, text(&mut random)).map_err(failed(format!("writing {}", path.display())))?;
    }
    told("making a file system of it");
    let image = folder.join("tree.img");
    let file = File::create(&image).map_err(failed(format!("making {}", image.display())))?;
    file.set_len(size.image).map_err(failed(format!("making {}", image.display())))?;
    drop(file);
    mkfs(&tree, &image).map_err(failed("mkfs.ext4 (of e2fsprogs)".to_owned()))?;
    fs::remove_dir_all(&tree).map_err(failed(format!("deleting {}", tree.display())))?;
    Ok(image)
}

fn mkfs(tree: &Path, image: &Path) -> io::Result<()> {
    // Where it is on systems that keep it from users' paths.
    for program in ["mkfs.ext4", "/usr/sbin/mkfs.ext4", "/sbin/mkfs.ext4"] {
        let mut command = Command::new(program);
        // Tables and journal written in full, as they are once a file system has been in use for a while.
        command.args(["-q", "-F", "-E", "nodiscard,lazy_itable_init=0,lazy_journal_init=0", "-d"]).arg(tree).arg(image);
        let output = match command.output() {
            Err(e) if e.kind() == ErrorKind::NotFound => continue,
            other => other?,
        };
        if output.status.success() {
            return Ok(());
        }
        return Err(io::Error::other(String::from_utf8_lossy(&output.stderr).trim().to_owned()));
    }
    Err(io::Error::new(ErrorKind::NotFound, "the program is not installed"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_for_the_same_seed() {
        let texts = |seed| {
            let mut random = Rng::new(seed, 0);
            (0..200).map(|_| text(&mut random)).collect::<Vec<_>>()
        };
        assert!(texts(1) == texts(1) && texts(1) != texts(2));
        let lengths: Vec<usize> = texts(1).iter().map(Vec::len).collect();
        assert!(lengths.iter().all(|l| (256..140_000).contains(l)));
        assert!(texts(1).iter().flatten().all(|b| *b != 0), "sources have no zeroes");
    }
}
