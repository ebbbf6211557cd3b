//! A guest whose disk is a device of the daemon's, over vhost-user-blk; the daemon is killed, and replaced, while the
//! guest writes.

use crate::common::{Place, until};
use crate::guest;
use rustix::process::Signal;
use std::ffi::OsStr;
use std::fs::File;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// What the guest does. It asks for things by making files in the directory that it shares, and waits until they have
/// gone: that may be before it has done making them, which then fails.
const SCRIPT: &str = r#"
ask() { touch "$1" 2>/dev/null || true; while [ -e "$1" ]; do sleep 0.2; done; }
another() { ask replace; dd if=$disk of=/dev/null bs=4096 count=64 iflag=direct 2>/dev/null; ask same; }
disk=/dev/vda
echo "id $(cat /sys/block/vda/serial)"
echo "queues $(ls /sys/block/vda/mq | wc -l)"
echo "size $(blockdev --getsize64 $disk)"
[ "$(cat /sys/block/vda/queue/discard_max_bytes)" -gt 0 ]
[ "$(cat /sys/block/vda/queue/write_zeroes_max_bytes)" -gt 0 ]
mkfs.ext4 -q $disk
mkdir -p /mnt
mount $disk /mnt
head -c 20000000 /dev/urandom > /mnt/before
sum=$(sha256sum < /mnt/before)
fio --name=load --directory=/mnt --size=24m --rw=randwrite --bs=4k --iodepth=16 --ioengine=libaio --direct=1 \
    --verify=crc32c --numjobs=2 --loops=2 --fsync=64 --minimal > fio.out &
sleep 2
ask kill
sleep 2
another
another
ask kill
sleep 2
another
wait $!
echo "load $(awk -F ';' '{ print $5 }' fio.out | sort -u | tr '\n' ' ')"
rm /mnt/load*
sync
fstrim /mnt
ask stop
echo 3 > /proc/sys/vm/drop_caches
[ "$(sha256sum < /mnt/before)" = "$sum" ]
umount /mnt
e2fsck -f -n $disk > fsck.out
echo "clean"
ask grow
for i in $(seq 100); do
    [ "$(blockdev --getsize64 $disk)" = 268435456 ] && break
    sleep 0.2
done
echo "grown $(blockdev --getsize64 $disk)"
"#;

/// Formats, mounts, and verifies, while the daemon is killed twice, replaced three times and ended once; then the
/// device grows.
pub(crate) fn a_disk() {
    let place = Place::new();
    let file = place.root().join("disk");
    File::create(&file).and_then(|f| f.set_len(256 << 20)).unwrap();
    let table = |sectors: u32| format!("0 {sectors} linear {} 0", file.display());
    assert!(place.udm(["create", "vol", "--table", &table(128 << 11)]).status.success());
    place.ok("export vol --vhost-user vol.sock --queues 2");
    let job = place.root().join("job");
    std::fs::create_dir(&job).unwrap();
    let over = AtomicBool::new(false);
    let answered = Mutex::new(Vec::new());
    let said = std::thread::scope(|scope| {
        scope.spawn(|| {
            let asked = |what: &str| Path::exists(&job.join(what));
            let done = |what: &str| {
                std::fs::remove_file(job.join(what)).unwrap();
                answered.lock().unwrap().push(what.to_owned());
            };
            // Connections that there had been when the daemon was killed.
            let mut back = 0;
            // And when it was replaced.
            let mut connections = 0;
            while !over.load(Ordering::Relaxed) {
                if asked("kill") {
                    println!("-- the daemon is killed");
                    back = place.log().matches("has the disk").count();
                    place.signal(Signal::KILL);
                    until("the daemon to be gone", || !place.is_served());
                    place.ok("ls");
                    done("kill");
                }
                if asked("replace") {
                    println!("-- another daemon goes on");
                    // A machine that is about to come back would be a new connection of its own.
                    until("the machine to be connected", || place.log().matches("has the disk").count() > back);
                    let process = place.daemon_pid();
                    connections = place.log().matches("has the disk").count();
                    place.ok("daemon --replace");
                    assert_ne!(place.daemon_pid(), process);
                    done("replace");
                }
                if asked("same") {
                    // What it has read since came over the connection that there was.
                    assert_eq!(place.log().matches("has the disk").count(), connections, "it connected again");
                    done("same");
                }
                if asked("stop") {
                    println!("-- the daemon ends");
                    place.ok("daemon --stop");
                    place.ok("ls");
                    done("stop");
                }
                if asked("grow") {
                    assert!(place.udm(["load", "vol", "--table", &table(256 << 11)]).status.success());
                    place.ok("resume vol");
                    done("grow");
                }
                std::thread::sleep(Duration::from_millis(100));
            }
        });
        let socket = place.root().join("vol.sock");
        let options = [OsStr::new("-v"), socket.as_os_str()];
        let said = std::panic::catch_unwind(|| guest::boot(place.root(), "a disk", options, SCRIPT, &[]));
        over.store(true, Ordering::Relaxed);
        said
    });
    println!("-- the daemon's log:\n{}", place.log());
    let said = said.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    let expect = ["kill", "replace", "same", "replace", "same", "kill", "replace", "same", "stop", "grow"];
    assert_eq!(*answered.lock().unwrap(), expect, "what it asked for");
    for line in ["id vol", "queues 2", "size 134217728", "load 0 ", "clean", "grown 268435456"] {
        assert!(said.lines().any(|l| l == line), "{line:?} is missing in: {said}");
    }
}
