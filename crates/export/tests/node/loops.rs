//! Loop devices on nodes' files, where there are any and we are root.

use crate::device::{Disk, Shown};
use crate::place::{Place, pattern, until};
use rustix::fs::OFlags;
use std::any::Any;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use udm_export::node::loopdev::{Detached, LoopDevice, attach, available, detach_stale};
use udm_export::{Export, Refused};
use udm_io::{BlockDevice, Domain, Op};

/// What the descriptors of the threads that do something with a loop device are.
fn descriptors_apart() -> Vec<PathBuf> {
    let tasks = fs::read_dir("/proc/self/task").unwrap().flatten().map(|task| task.path());
    let apart = tasks.filter(|task| fs::read(task.join("comm")).is_ok_and(|name| name == b"udm-apart\n"));
    // One that has ended meanwhile has none.
    let fds = apart.filter_map(|task| fs::read_dir(task.join("fd")).ok());
    fds.flatten().flatten().filter_map(|fd| fs::read_link(fd.path()).ok()).collect()
}

/// A loop device that goes before its node does.
pub(crate) struct Attached(pub(crate) LoopDevice, Domain);

impl Attached {
    fn is_attached(&self) -> bool {
        self.0.is_attached(&self.1).unwrap()
    }

    fn detach(&self) -> Detached {
        self.0.detach(&self.1).unwrap()
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        let _ = self.0.detach_when_closed(&self.1);
    }
}

pub(crate) fn on(place: &Place, name: &str, read_only: bool, block: u32) -> Option<Attached> {
    if let Err(error) = available() {
        println!("SKIP {error}");
        return None;
    }
    let domain = Domain::default();
    match attach(&domain, &place.server.file(name), read_only, block) {
        Ok(device) => Some(Attached(device, domain)),
        Err(error) => {
            println!("SKIP {error}");
            None
        }
    }
}

fn attribute(device: &LoopDevice, name: &str) -> String {
    let dir = Path::new("/sys/block").join(device.path().file_name().unwrap());
    fs::read_to_string(dir.join(name)).unwrap().trim().to_owned()
}

fn direct(path: &Path) -> File {
    OpenOptions::new().read(true).write(true).custom_flags(OFlags::DIRECT.bits() as i32).open(path).unwrap()
}

#[test]
fn a_block_device_with_direct_io_beneath() {
    let Some(place) = Place::new() else { return };
    for block in [512u32, 4096] {
        let name = format!("disk{block}");
        let disk = Disk::blocks(8 << 20, block);
        place.add(&name, &disk);
        let Some(device) = on(&place, &name, false, block) else { return };
        assert_eq!(attribute(&device.0, "size"), "16384");
        assert_eq!(attribute(&device.0, "queue/logical_block_size"), block.to_string());
        assert_eq!(attribute(&device.0, "loop/dio"), "1");
        assert_ne!(attribute(&device.0, "queue/discard_max_bytes"), "0");
        let data = pattern(2, 8 << 20);
        let file = OpenOptions::new().read(true).write(true).open(device.0.path()).unwrap();
        file.write_all_at(&data, 0).unwrap();
        file.sync_all().unwrap();
        assert!(disk.seen().iter().any(|(op, ..)| *op == Op::Flush));
        assert!(fs::read(place.server.file(&name)).unwrap() == data);
        drop(file);
        assert_eq!(device.detach(), Detached::Yes);
        assert!(!device.is_attached());
        assert!(place.server.reap() && !place.server.is_open(&name));
    }
}

#[test]
fn one_that_is_in_use_stays() {
    let Some(place) = Place::new() else { return };
    place.disk(Disk::blocks(1 << 20, 512));
    let Some(device) = on(&place, "disk", false, 512) else { return };
    let file = direct(&device.0.path());
    assert_eq!(device.detach(), Detached::InUse);
    assert!(device.is_attached());
    drop(file);
    assert!(device.is_attached(), "it does not go by itself");
    // Whoever looks at new devices may have it open for a moment.
    until("it is detached", || device.detach() == Detached::Yes);
    let Some(device) = on(&place, "disk", false, 512) else { return };
    let file = direct(&device.0.path());
    device.0.detach_when_closed(&device.1).unwrap();
    assert!(device.is_attached());
    drop(file);
    until("it goes by itself", || !device.is_attached());
}

#[test]
fn size_and_mode_follow_the_node() {
    let Some(place) = Place::new() else { return };
    let (_, disk) = place.disk(Disk::blocks(1 << 20, 512));
    disk.resize(1 << 19);
    let Some(device) = on(&place, "disk", false, 512) else { return };
    assert_eq!(attribute(&device.0, "size"), "1024");
    disk.resize(1 << 20);
    place.server.changed("disk");
    device.0.resize(&device.1).unwrap();
    assert_eq!(attribute(&device.0, "size"), "2048");
    device.0.set_read_only(&device.1, true).unwrap();
    assert_eq!(attribute(&device.0, "ro"), "1");
    device.0.set_read_only(&device.1, false).unwrap();
    assert_eq!(attribute(&device.0, "ro"), "0");
    drop(device);
    let Some(device) = on(&place, "disk", true, 512) else { return };
    assert_eq!(attribute(&device.0, "ro"), "1");
}

#[test]
fn only_what_a_dead_server_left_is_stale() {
    let Some(place) = Place::new() else { return };
    place.disk(Disk::blocks(1 << 20, 512));
    let Some(device) = on(&place, "disk", false, 512) else { return };
    let other = Place::new().unwrap();
    assert_eq!(detach_stale(&device.1, other.server.dir()).unwrap(), 0);
    assert!(device.is_attached());
    assert_eq!(detach_stale(&device.1, place.server.dir()).unwrap(), 1);
    until("it is detached", || !device.is_attached());
}

/// Whoever waits in the kernel for a device of its own process, and is killed, stays until the answer comes or the
/// connection ends; and that ends with the last descriptor.
#[test]
fn who_waits_for_the_server_does_not_hold_it() {
    let Some(place) = Place::new() else { return };
    let (_, disk) = place.disk(Disk::blocks(1 << 20, 512));
    if on(&place, "disk", false, 512).is_none() {
        return;
    }
    disk.hold();
    std::thread::scope(|scope| {
        let attach = scope.spawn(|| on(&place, "disk", false, 512));
        until("the kernel has the file flushed", || disk.held() > 0 || attach.is_finished());
        let open = descriptors_apart();
        disk.release();
        let attached = attach.join().unwrap().unwrap();
        assert!(open.iter().any(|path| path.starts_with("/dev/loop-control")), "nobody is apart: {open:?}");
        assert!(!open.iter().any(|path| path.starts_with("/dev/fuse")), "{open:?}");
        assert!(attached.is_attached());
    });
}

/// A disk whose mode is not told for as long as somebody has the lock.
struct Dawdling(Shown, Arc<Mutex<()>>, Arc<AtomicUsize>);

impl Export for Dawdling {
    fn device(&self) -> Arc<dyn BlockDevice> {
        self.0.device()
    }
    fn read_only(&self) -> bool {
        self.2.fetch_add(1, Ordering::SeqCst);
        drop(self.1.lock().unwrap());
        false
    }
    fn open(&self) -> Result<Box<dyn Any + Send>, Refused> {
        self.0.open()
    }
    fn name(&self) -> String {
        self.0.name()
    }
}

#[test]
fn who_looks_up_a_name_does_not_hold_the_server() {
    let Some(place) = Place::new() else { return };
    let (lock, asked) = (Arc::<Mutex<()>>::default(), Arc::<AtomicUsize>::default());
    let device = Dawdling(Shown(Disk::blocks(1 << 20, 512)), lock.clone(), asked.clone());
    for work in [
        Box::new(|| place.server.add("disk", Box::new(device)).unwrap()) as Box<dyn FnOnce() + Send>,
        Box::new(|| assert!(place.server.remove("disk"))),
    ] {
        let (held, before) = (lock.lock().unwrap(), asked.load(Ordering::SeqCst));
        std::thread::scope(|scope| {
            let work = scope.spawn(work);
            until("the name is looked up", || asked.load(Ordering::SeqCst) > before || work.is_finished());
            let open = descriptors_apart();
            drop(held);
            work.join().unwrap();
            assert!(!open.is_empty(), "nobody is apart");
            assert!(!open.iter().any(|path| path.starts_with("/dev/fuse")), "{open:?}");
        });
    }
}
