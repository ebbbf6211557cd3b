//! What is mounted, as /proc/self/mountinfo shows it (proc_pid_mountinfo(5)). Nothing that is mounted is touched: its
//! server may be gone, or be this process.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use udm_base::DevT;

/// One mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// As statx(2) has it.
    pub id: u64,
    /// The file system's number; of major 0 where it has no block device, or several.
    pub dev: DevT,
    /// Where it is mounted.
    pub point: PathBuf,
    /// The file system's type.
    pub kind: String,
    /// What is mounted: a block device, or any word.
    pub source: PathBuf,
    /// The file system's own options.
    pub options: OsString,
}

/// All mounts that this process sees, those on top last.
///
/// # Errors
/// Of reading the file: there may be no /proc.
pub fn mounts() -> io::Result<Vec<Mount>> {
    Ok(parse(&fs::read("/proc/self/mountinfo")?))
}

/// The number of the block device at a path, if one is there.
pub fn block_device(path: &Path) -> Option<DevT> {
    use std::os::unix::fs::{FileTypeExt, MetadataExt};
    let meta = fs::metadata(path).ok().filter(|meta| meta.file_type().is_block_device())?;
    Some(DevT::new(rustix::fs::major(meta.rdev()), rustix::fs::minor(meta.rdev())))
}

/// Lines of `ID PARENT MAJOR:MINOR ROOT POINT OPTIONS [FIELDS…] - TYPE SOURCE OPTIONS`. Others are passed over.
pub(crate) fn parse(mountinfo: &[u8]) -> Vec<Mount> {
    mountinfo.split(|b| *b == b'\n').filter_map(line).collect()
}

fn line(line: &[u8]) -> Option<Mount> {
    let mut words = line.split(|b| *b == b' ');
    let text = |word: &[u8]| std::str::from_utf8(word).ok().map(str::to_owned);
    let id = text(words.next()?)?.parse().ok()?;
    let dev = text(words.nth(1)?)?.parse().ok()?;
    let point = PathBuf::from(unescape(words.nth(1)?));
    let mut after = words.skip_while(|word| *word != b"-").skip(1);
    let kind = String::from_utf8_lossy(after.next()?).into_owned();
    let source = PathBuf::from(unescape(after.next()?));
    let options = unescape(after.next().unwrap_or_default());
    Some(Mount { id, dev, point, kind, source, options })
}

/// `\NNN` stands for a byte in octal.
pub(crate) fn unescape(text: &[u8]) -> OsString {
    let (mut out, mut rest) = (Vec::with_capacity(text.len()), text);
    while let Some((&first, tail)) = rest.split_first() {
        let digits = (first == b'\\').then(|| tail.get(..3)).flatten().and_then(|d| std::str::from_utf8(d).ok());
        match digits.and_then(|d| u8::from_str_radix(d, 8).ok()) {
            Some(byte) => {
                out.push(byte);
                rest = &tail[3..];
            }
            None => {
                out.push(first);
                rest = tail;
            }
        }
    }
    OsString::from_vec(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines() {
        let found = parse(
            b"36 35 98:0 /mnt1 /run/a\\040b/dev rw,noatime master:1 - ext3 /dev/root rw\n\
            40 1 0:52 / /mnt rw,nosuid shared:7 propagate_from:2 - fuse.udm u\\134m rw,user_id=0\n\
            41 1 0:53 / / rw - tmpfs tmpfs\nnonsense\n1 2\n1 2 3 / / - a b c\n\n",
        );
        let expect = [
            (36, DevT::new(98, 0), "/run/a b/dev", "ext3", "/dev/root", "rw"),
            (40, DevT::new(0, 52), "/mnt", "fuse.udm", "u\\m", "rw,user_id=0"),
            (41, DevT::new(0, 53), "/", "tmpfs", "tmpfs", ""),
        ];
        let expect = expect.map(|(id, dev, point, kind, source, options)| Mount {
            id,
            dev,
            point: point.into(),
            kind: kind.into(),
            source: source.into(),
            options: options.into(),
        });
        assert_eq!(found, expect);
    }

    #[test]
    fn octal() {
        for (text, expect) in
            [("/a", "/a"), (r"/a\040b", "/a b"), (r"\134\011", "\\\t"), (r"a\134\12", r"a\\12"), (r"\", r"\")]
        {
            assert_eq!(unescape(text.as_bytes()), expect);
        }
    }
}
