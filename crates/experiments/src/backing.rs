//! Files to lie beneath devices, and the kernel's loop devices on them. What is made here ends with the process,
//! however it ends, but for the file in the experiment's folder.

use rustix::fs::{FsWord, statvfs};
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::{self, Command};
use udm_bench::Error;
use udm_bench::fill::random;
use udm_bench::rng::Rng;

/// `TMPFS_MAGIC` and `EXT4_SUPER_MAGIC` (`include/uapi/linux/magic.h`, 6.12).
const TMPFS: FsWord = 0x0102_1994;
const EXT4: FsWord = 0xef53;
/// Where systems have a tmpfs that everybody may write to.
const IN_MEMORY: [&str; 2] = ["/dev/shm", "/tmp"];

/// A file full of random data.
pub(super) struct Backing {
    /// Where it is found as long as this lives.
    pub(super) path: PathBuf,
    /// Held, for a file that has no name any more.
    _file: File,
    named: bool,
    /// On which kind of file system.
    pub(super) kind: &'static str,
}

impl Backing {
    /// A file of `bytes` in a tmpfs, without a name; or why there is none.
    pub(super) fn in_memory(bytes: u64) -> Result<Result<Self, String>, Error> {
        let mut why = "no tmpfs at /dev/shm or /tmp".to_owned();
        for folder in IN_MEMORY.map(Path::new) {
            if !rustix::fs::statfs(folder).is_ok_and(|found| found.f_type == TMPFS) {
                continue;
            }
            let free = statvfs(folder).map_or(0, |found| found.f_bavail * found.f_frsize);
            if free < bytes + bytes / 8 {
                why = format!("{} has {} MiB left, and {} are needed", folder.display(), free >> 20, bytes >> 20);
                continue;
            }
            let path = folder.join(format!("udm-bench-{}.tmp", process::id()));
            let failed = |source| Error::System { what: format!("making {}", path.display()), source };
            let file = match OpenOptions::new().read(true).write(true).create_new(true).open(&path) {
                Ok(file) => file,
                Err(e) if e.kind() == ErrorKind::PermissionDenied => {
                    why = format!("{}: {e}", folder.display());
                    continue;
                }
                Err(e) => return Err(failed(e)),
            };
            // Without a name: its memory goes with this process, even if that is killed.
            fs::remove_file(&path).map_err(failed)?;
            fill(&file, bytes).map_err(failed)?;
            let path = PathBuf::from(format!("/proc/{}/fd/{}", process::id(), file.as_raw_fd()));
            return Ok(Ok(Self { path, _file: file, named: false, kind: "tmpfs" }));
        }
        Ok(Err(why))
    }

    /// A file of `bytes` in a folder.
    pub(super) fn on_disk(folder: &Path, bytes: u64) -> Result<Self, Error> {
        let path = folder.join("loop.img");
        let failed = |source| Error::System { what: format!("making {}", path.display()), source };
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path).map_err(failed)?;
        fill(&file, bytes).and_then(|()| file.sync_all()).map_err(failed)?;
        let kind = match rustix::fs::statfs(folder).map(|found| found.f_type) {
            Ok(EXT4) => "ext4",
            Ok(TMPFS) => "tmpfs",
            _ => "the folder's file system",
        };
        Ok(Self { path, _file: file, named: true, kind })
    }
}

impl Drop for Backing {
    fn drop(&mut self) {
        if self.named {
            // What cannot be removed now goes with the folder.
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn fill(mut file: &File, bytes: u64) -> io::Result<()> {
    let mut block = vec![0; 1 << 20];
    let mut rng = Rng::new(2018, 0);
    random(&mut block, &mut rng);
    let mut left = bytes;
    while left > 0 {
        let now = left.min(block.len() as u64) as usize;
        // Blocks that differ, without drawing all of them anew.
        block[..8].copy_from_slice(&rng.draw().to_ne_bytes());
        file.write_all(&block[..now])?;
        left -= now as u64;
    }
    Ok(())
}

/// One of the kernel's loop devices on a file.
pub(super) struct LoopDevice {
    pub(super) path: PathBuf,
    /// Held: the device is detached when its last user closes it.
    _held: File,
}

impl LoopDevice {
    /// Attaches one; or says why that cannot be. Blocks.
    pub(super) fn on(file: &Path, direct: bool) -> Result<Self, String> {
        if !Path::new("/dev/loop-control").exists() {
            return Err("/dev/loop-control is missing".to_owned());
        }
        let mut words = vec!["--find", "--show"];
        if direct {
            words.push("--direct-io=on");
        }
        let path = PathBuf::from(losetup(|command| command.args(&words).arg(file))?.trim());
        let held = OpenOptions::new().read(true).write(true).open(&path);
        let held = held.map_err(|e| {
            let _ = losetup(|command| command.arg("--detach").arg(&path));
            format!("{}: {e}", path.display())
        })?;
        // While somebody holds it, to detach means: when it is closed. So it goes with this process in any case.
        losetup(|command| command.arg("--detach").arg(&path))?;
        Ok(Self { path, _held: held })
    }
}

/// What losetup prints.
fn losetup(words: impl Fn(&mut Command) -> &mut Command) -> Result<String, String> {
    // Where it is on systems that keep it from users' paths.
    for program in ["losetup", "/usr/sbin/losetup", "/sbin/losetup"] {
        let mut command = Command::new(program);
        let output = match words(&mut command).output() {
            Err(e) if e.kind() == ErrorKind::NotFound => continue,
            Err(e) => return Err(format!("losetup: {e}")),
            Ok(output) => output,
        };
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(said.lines().next().unwrap_or("losetup failed").trim().to_owned());
    }
    Err("losetup is not installed".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_without_a_name() {
        let file = match Backing::in_memory(1 << 20).unwrap() {
            Ok(file) => file,
            Err(why) => return println!("SKIP {why}"),
        };
        assert_eq!(fs::metadata(&file.path).unwrap().len(), 1 << 20);
        let data = fs::read(&file.path).unwrap();
        assert!(data.chunks(4096).all(|page| page.iter().any(|b| *b != 0)), "every page has its data");
        let path = file.path.clone();
        drop(file);
        assert!(!path.exists());
    }

    #[test]
    fn a_file_in_a_folder() {
        let folder = tempfile::tempdir().unwrap();
        let file = Backing::on_disk(folder.path(), 65536).unwrap();
        assert_eq!(fs::metadata(&file.path).unwrap().len(), 65536);
        assert!(Backing::on_disk(folder.path(), 512).is_err(), "nobody's file is written over");
        drop(file);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
