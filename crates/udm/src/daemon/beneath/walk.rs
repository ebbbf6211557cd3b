//! From a path or a block device down to what it lies on, as far as the kernel shows it: the file system of a file and
//! the devices of that, the file of a loop device, what a device mapper's or an md's device is made of, a partition's
//! disk.
//!
//! What it does not show here is not found: a journal or a log on a device of its own, and what is on the other end of
//! a network, or of somebody else's server.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use udm_base::DevT;
use udm_files::Mount;

/// The longest way that is followed.
const DEPTH: usize = 16;

/// Where a path leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// To a block device.
    Device(DevT),
    /// To a file, of a file system with this number, in a mount with this id.
    File { fs: DevT, mount: u64 },
}

/// Asks the system.
pub(super) fn look(path: &Path) -> Option<Place> {
    use rustix::fs::{AtFlags, StatxFlags, major, makedev, minor};
    let kind = fs::metadata(path).ok()?.file_type();
    let stat = rustix::fs::statx(rustix::fs::CWD, path, AtFlags::empty(), StatxFlags::BASIC_STATS | StatxFlags::MNT_ID);
    let stat = stat.ok()?;
    let devt = |dev: u64| DevT::new(major(dev), minor(dev));
    Some(match kind.is_block_device() {
        true => Place::Device(devt(makedev(stat.stx_rdev_major, stat.stx_rdev_minor))),
        false => Place::File { fs: devt(makedev(stat.stx_dev_major, stat.stx_dev_minor)), mount: stat.stx_mnt_id },
    })
}

/// What is looked for, and where.
pub(super) struct Walk<'a> {
    pub(super) sysfs: &'a Path,
    pub(super) mounts: &'a [Mount],
    /// As [`look`].
    pub(super) look: &'a dyn Fn(&Path) -> Option<Place>,
    /// The number of the file system of a loop device's file, by the loop device's minor.
    pub(super) behind_loop: &'a dyn Fn(u32) -> Option<DevT>,
    /// Whether it is what is looked for: a file system or a device, with the disk's name if it is one.
    pub(super) is_own: &'a dyn Fn(DevT, &str) -> bool,
}

impl Walk<'_> {
    /// What lies between here and what is looked for, from the top; `None` where it is not beneath. Blocks on what is
    /// in between.
    pub(super) fn from(&self, place: &Place) -> Option<Vec<String>> {
        let way = Way { walk: self, seen: RefCell::default() };
        let mut found = way.place(place, DEPTH)?;
        found.reverse();
        Some(found)
    }
}

/// One walk. What it finds is told from the bottom.
struct Way<'a> {
    walk: &'a Walk<'a>,
    seen: RefCell<BTreeSet<DevT>>,
}

impl Way<'_> {
    fn place(&self, place: &Place, depth: usize) -> Option<Vec<String>> {
        match place {
            Place::Device(dev) => self.device(*dev, depth),
            Place::File { fs, mount } => {
                let by_id = self.walk.mounts.iter().find(|known| known.id == *mount && *mount != 0);
                self.file_system(*fs, by_id, depth)
            }
        }
    }

    fn path(&self, path: &Path, depth: usize) -> Option<Vec<String>> {
        self.place(&(self.walk.look)(path)?, depth)
    }

    /// One without a mount that is known is looked up by its number.
    fn file_system(&self, fs: DevT, mount: Option<&Mount>, depth: usize) -> Option<Vec<String>> {
        if (self.walk.is_own)(fs, "") {
            return Some(Vec::new());
        }
        let depth = depth.checked_sub(1)?;
        let mount = mount.or_else(|| self.walk.mounts.iter().find(|mount| mount.dev == fs));
        let mut found = self.device(fs, depth);
        if let Some(mount) = mount {
            found = found.or_else(|| self.layers(mount, depth)).or_else(|| self.source(mount, depth));
        }
        let mut found = found?;
        found.extend(mount.map(|mount| mount.point.display().to_string()));
        Some(found)
    }

    /// Of an overlay: the directories that it consists of.
    fn layers(&self, mount: &Mount, depth: usize) -> Option<Vec<String>> {
        let options = mount.options.as_bytes().split(|b| *b == b',').filter(|_| mount.kind == "overlay");
        let dirs = options.filter_map(|option| {
            [&b"upperdir="[..], b"lowerdir=", b"lowerdir+=", b"datadir+="]
                .iter()
                .find_map(|key| option.strip_prefix(*key))
        });
        let dirs = dirs.flat_map(|dirs| dirs.split(|b| *b == b':')).filter(|dir| !dir.is_empty());
        dirs.map(|dir| Path::new(std::ffi::OsStr::from_bytes(dir))).find_map(|dir| self.path(dir, depth))
    }

    /// The devices of a file system that has a number of its own. Other sources may be anything, also a path of a
    /// server that does not answer.
    fn source(&self, mount: &Mount, depth: usize) -> Option<Vec<String>> {
        let named = mount
            .source
            .as_os_str()
            .as_bytes()
            .split(|b| *b == b':')
            .map(|one| Path::new(std::ffi::OsStr::from_bytes(one)));
        let named: Vec<&Path> = named.filter(|path| path.starts_with("/dev")).collect();
        named.iter().find_map(|path| self.path(path, depth)).or_else(|| {
            let all = named.iter().flat_map(|path| self.members(path));
            all.into_iter().find_map(|dev| self.device(dev, depth))
        })
    }

    /// All devices of the btrfs that this is one of.
    fn members(&self, device: &Path) -> Vec<DevT> {
        let Some(Place::Device(known)) = (self.walk.look)(device) else { return Vec::new() };
        let dirs = entries(&self.walk.sysfs.join("fs/btrfs")).into_iter().map(|dir| dir.join("devices"));
        let numbers = |dir: PathBuf| entries(&dir).iter().filter_map(|device| number_in(device)).collect::<Vec<_>>();
        dirs.map(numbers).find(|all| all.contains(&known)).unwrap_or_default()
    }

    fn device(&self, dev: DevT, depth: usize) -> Option<Vec<String>> {
        let depth = depth.checked_sub(1)?;
        if !self.seen.borrow_mut().insert(dev) {
            return None;
        }
        let dir = fs::canonicalize(self.walk.sysfs.join(format!("dev/block/{dev}"))).ok()?;
        let disk = if dir.join("partition").exists() { dir.parent()?.to_owned() } else { dir };
        let name = disk.file_name()?.to_string_lossy().into_owned();
        if (self.walk.is_own)(dev, &name) {
            return Some(vec![name]);
        }
        let mut found = self.loop_file(&disk, depth).or_else(|| {
            let slaves = entries(&disk.join("slaves"));
            slaves.iter().filter_map(|slave| number_in(slave)).find_map(|slave| self.device(slave, depth))
        })?;
        found.push(name);
        Some(found)
    }

    fn loop_file(&self, disk: &Path, depth: usize) -> Option<Vec<String>> {
        let file = fs::read(disk.join("loop/backing_file")).ok()?;
        let file = file.strip_suffix(b"\n").unwrap_or(&file);
        // First by the number, which the driver keeps: the path may be another's by now, of another namespace, or one
        // that must not be looked at.
        let fs = number_in(disk).and_then(|dev| (self.walk.behind_loop)(dev.minor));
        let by_number = fs.and_then(|fs| self.file_system(fs, None, depth));
        by_number.or_else(|| self.path(Path::new(std::ffi::OsStr::from_bytes(file)), depth))
    }
}

fn entries(dir: &Path) -> Vec<PathBuf> {
    fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path()).collect()
}

/// The number of a device, in its directory.
fn number_in(dir: &Path) -> Option<DevT> {
    fs::read_to_string(dir.join("dev")).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A machine on paper: a line is a block device as `NUMBER NAME [WHAT…]`, where WHAT is `loop=FILE`, `slave=NAME`
    /// or, within another, `part`.
    struct Machine {
        sysfs: tempfile::TempDir,
    }

    impl Machine {
        fn new(lines: &[&str]) -> Self {
            let machine = Self { sysfs: tempfile::tempdir().unwrap() };
            let sysfs = machine.sysfs.path();
            let write = |path: PathBuf, text: &str| {
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, text).unwrap();
            };
            fs::create_dir_all(sysfs.join("dev/block")).unwrap();
            for line in lines {
                let mut words = line.split(' ');
                let (number, name) = (words.next().unwrap(), words.next().unwrap());
                let dir = sysfs.join("devices").join(name);
                write(dir.join("dev"), &format!("{number}\n"));
                std::os::unix::fs::symlink(&dir, sysfs.join("dev/block").join(number)).unwrap();
                for word in words {
                    match word.split_once('=') {
                        Some(("loop", file)) => write(dir.join("loop/backing_file"), &format!("{file}\n")),
                        Some(("slave", slave)) => {
                            fs::create_dir_all(dir.join("slaves")).unwrap();
                            let to = sysfs.join("devices").join(slave);
                            std::os::unix::fs::symlink(to, dir.join("slaves").join(slave)).unwrap();
                        }
                        _ => write(dir.join(word), "1"),
                    }
                }
            }
            let pool = sysfs.join("fs/btrfs/0-0/devices");
            fs::create_dir_all(&pool).unwrap();
            for name in ["sdy", "ublkb1"] {
                let _ = std::os::unix::fs::symlink(sysfs.join("devices").join(name), pool.join(name));
            }
            machine
        }

        #[track_caller]
        fn check(&self, place: &Place, expect: Option<&[&str]>) {
            let mount = |id, dev, point: &str, kind: &str, source: &str, options: &str| Mount {
                id,
                dev,
                point: point.into(),
                kind: kind.into(),
                source: source.into(),
                options: options.into(),
            };
            let mounts = [
                mount(1, DevT::new(8, 1), "/", "ext4", "/dev/sda1", "rw"),
                mount(2, DevT::new(259, 0), "/on-ublk", "ext4", "/dev/ublkb1", "rw"),
                mount(3, DevT::new(0, 40), "/nodes", "fuse.udm", "udm", "rw"),
                mount(
                    4,
                    DevT::new(0, 41),
                    "/over",
                    "overlay",
                    "overlay",
                    "rw,lowerdir=/lower:/on-ublk/l,upperdir=/u,workdir=/w",
                ),
                mount(5, DevT::new(0, 42), "/pool", "btrfs", "/dev/sdy", "rw"),
                mount(6, DevT::new(0, 43), "/far", "nfs4", "server:/dev/ublkb1", "rw"),
                mount(7, DevT::new(7, 2), "/deep", "ext4", "/dev/loop2", "rw"),
            ];
            let look = |path: &Path| {
                let path = path.to_str()?;
                let file = |fs: (u32, u32), mount| Some(Place::File { fs: DevT::new(fs.0, fs.1), mount });
                match path {
                    "/dev/sdy" => Some(Place::Device(DevT::new(65, 0))),
                    "/nodes/vol" => panic!("a file of the mount that is looked for is not touched"),
                    _ if path.starts_with("/on-ublk/") => file((259, 0), 2),
                    // As btrfs has it: a subvolume's number is nobody's.
                    _ if path.starts_with("/pool/") => file((0, 99), 5),
                    _ if path.starts_with("/over/") => file((0, 41), 4),
                    _ if path.starts_with("/deep/") => file((7, 2), 7),
                    _ if path.starts_with("/gone/") => None,
                    _ => file((8, 1), 1),
                }
            };
            let behind_loop = |minor| {
                [(5, DevT::new(0, 40)), (6, DevT::new(259, 0))].iter().find(|(n, _)| *n == minor).map(|(_, fs)| *fs)
            };
            let is_own = |dev: DevT, disk: &str| dev == DevT::new(0, 40) || disk == "ublkb1";
            let walk = Walk {
                sysfs: self.sysfs.path(),
                mounts: &mounts,
                look: &look,
                behind_loop: &behind_loop,
                is_own: &is_own,
            };
            let expect = expect.map(|names| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>());
            assert_eq!(walk.from(place), expect, "{place:?}");
        }
    }

    fn device(major: u32, minor: u32) -> Place {
        Place::Device(DevT::new(major, minor))
    }

    #[test]
    fn ways_to_ones_own_nodes() {
        let machine = Machine::new(&[
            "8:0 sda",
            "8:1 sda/sda1 partition",
            "65:0 sdy",
            "259:0 ublkb1",
            "259:1 ublkb1/ublkb1p1 partition",
            "259:2 ublkb2",
            "7:0 loop0 loop=/a/file",
            "7:1 loop1 loop=/on-ublk/file",
            "7:2 loop2 loop=/over/file",
            "7:3 loop3 loop=/deep/file",
            "7:4 loop4 loop=/pool/file",
            "7:5 loop5 loop=/nodes/vol",
            "7:6 loop6 loop=/gone/file",
            "7:7 loop7 loop=/gone/file",
            "253:0 dm-0 slave=sda slave=loop1",
            "253:1 dm-1 slave=sda",
            "253:2 dm-2 slave=dm-3",
            "253:3 dm-3 slave=dm-2",
        ]);
        machine.check(&device(8, 1), None);
        machine.check(&device(1, 1), None);
        machine.check(&device(259, 0), Some(&["ublkb1"]));
        machine.check(&device(259, 1), Some(&["ublkb1"]));
        // Another daemon's.
        machine.check(&device(259, 2), None);
        machine.check(&device(7, 0), None);
        machine.check(&device(7, 1), Some(&["loop1", "/on-ublk", "ublkb1"]));
        machine.check(&device(7, 2), Some(&["loop2", "/over", "/on-ublk", "ublkb1"]));
        machine.check(&device(7, 3), Some(&["loop3", "/deep", "loop2", "/over", "/on-ublk", "ublkb1"]));
        machine.check(&device(7, 4), Some(&["loop4", "/pool", "ublkb1"]));
        machine.check(&device(7, 5), Some(&["loop5"]));
        machine.check(&device(7, 6), Some(&["loop6", "/on-ublk", "ublkb1"]));
        machine.check(&device(7, 7), None);
        machine.check(&device(253, 0), Some(&["dm-0", "loop1", "/on-ublk", "ublkb1"]));
        machine.check(&device(253, 1), None);
        machine.check(&device(253, 2), None);
        machine.check(&Place::File { fs: DevT::new(0, 40), mount: 3 }, Some(&[]));
        machine.check(&Place::File { fs: DevT::new(0, 43), mount: 6 }, None);
    }

    #[test]
    fn a_long_way_ends() {
        let chain: Vec<_> = (0..40).map(|n| format!("253:{n} dm-{n} slave=dm-{}", n + 1)).collect();
        let lines: Vec<&str> =
            chain.iter().map(String::as_str).chain(["253:40 dm-40 slave=ublkb1", "259:0 ublkb1"]).collect();
        let machine = Machine::new(&lines);
        machine.check(&device(253, 0), None);
        machine.check(&device(253, 39), Some(&["dm-39", "dm-40", "ublkb1"]));
    }
}
