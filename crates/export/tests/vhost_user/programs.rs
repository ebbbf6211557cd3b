//! The front end against another program's back end: so that the two sides of ours are not wrong in the same way.

use crate::served::{next, part, perform, range, until};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use udm_export::vhost_user::front::{FrontEnd, FrontOptions, Kind};

struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// qemu-storage-daemon with a file of a megabyte; `None` when it is not installed.
fn storage_daemon(dir: &Path) -> Option<Killed> {
    let file = dir.join("file");
    std::fs::File::create(&file).and_then(|f| f.set_len(1 << 20)).unwrap();
    let socket = dir.join("qsd.sock");
    let child = Command::new("qemu-storage-daemon")
        .arg("--blockdev")
        .arg(format!("driver=file,node-name=file,filename={}", file.display()))
        .args(["--blockdev", "driver=raw,node-name=disk,file=file", "--export"])
        .arg(format!(
            "type=vhost-user-blk,id=e,node-name=disk,addr.type=unix,addr.path={},writable=on,num-queues=2",
            socket.display()
        ))
        .stdin(Stdio::null())
        .spawn();
    match child {
        Ok(child) => {
            let child = Killed(child);
            until("qemu-storage-daemon to listen", || socket.exists());
            Some(child)
        }
        Err(error) => {
            println!("SKIP another program's back end: qemu-storage-daemon: {error}");
            None
        }
    }
}

#[test]
fn another_back_end() {
    let dir = tempfile::tempdir().unwrap();
    let Some(_daemon) = storage_daemon(dir.path()) else { return };
    for (indirect, event_idx) in [(true, true), (false, false)] {
        let options =
            FrontOptions { queues: 2, queue_size: 64, indirect, event_idx, inflight: false, ..FrontOptions::default() };
        let mut connected = FrontEnd::connect(&dir.path().join("qsd.sock"), options);
        // It may listen a moment after its socket is there.
        until("it to answer", || {
            if connected.is_err() {
                connected = FrontEnd::connect(&dir.path().join("qsd.sock"), options);
            }
            connected.is_ok()
        });
        let (front, mut queues) = connected.unwrap();
        assert_eq!((front.config().sectors.bytes(), front.config().queues), (1 << 20, 2));
        for (number, queue) in queues.iter_mut().enumerate() {
            let sector = number as u64 * 64;
            for slot in 0..16u64 {
                front.memory().write(front.data() + slot * 512, &[slot as u8 + 1; 512]);
                assert!(queue.submit(Kind::Write, sector + slot, &[part(&front, slot * 512, 512)], slot));
            }
            (0..16).for_each(|_| assert_eq!(next(queue).status, 0));
            assert_eq!(perform(queue, Kind::Flush, 0, &[]).status, 0);
            front.memory().write(front.data(), &range(sector, 1, 0));
            assert_eq!(perform(queue, Kind::WriteZeroes, 0, &[part(&front, 0, 16)]).status, 0);
            assert_eq!(perform(queue, Kind::Read, sector, &[part(&front, 65536, 16 * 512)]).status, 0);
            let back = front.memory().read(front.data() + 65536, 16 * 512);
            for (slot, sector) in back.chunks(512).enumerate() {
                assert!(sector.iter().all(|b| *b == if slot == 0 { 0 } else { slot as u8 + 1 }), "sector {slot}");
            }
            assert_ne!(perform(queue, Kind::Read, 1 << 20, &[part(&front, 0, 512)]).status, 0);
        }
    }
}
