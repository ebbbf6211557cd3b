//! Devices of the guest's kernel over ublk: formatted, mounted and verified, while the daemon is killed, replaced, and
//! ended.
//!
//! The guest runs this machine's udm; what lies beneath is a RAM disk of its kernel, which outlives the daemon.

use crate::common::UDM;
use crate::guest;
use std::ffi::OsStr;

const SCRIPT: &str = r#"
udm=$1
modprobe ublk_drv
modprobe brd rd_nr=3 rd_size=131072
# What lies on what stands there.
mount -o bind /sys /host/sys
export UDM_DIR=/tmp/udm
u() { chroot /host "$udm" "$@"; }
serve() {
    # Not by the function: its process would be a shell's.
    chroot /host "$udm" daemon "$@" > /dev/null 2>&1 &
    daemon=$!
    for i in $(seq 300); do u ls > /dev/null 2>&1 && break; sleep 0.2; done
}
serve
# A thin pool's metadata and a file system's journal both depend on flushes that are carried out.
u create pool --table "0 131072 thin-pool /dev/ram1 /dev/ram0 128 0 1 skip_block_zeroing"
u message pool 0 create_thin 0
u create vol --node=auto --table "0 131072 thin /dev/mapper/pool 0"
disk=$(readlink $UDM_DIR/dev/vol)
name=${disk#/dev/}
echo "kind $(u node | cut -f 2)"
echo "queues $(ls /sys/block/$name/mq | wc -l)"
echo "cache $(cat /sys/block/$name/queue/write_cache), fua $(cat /sys/block/$name/queue/fua)"
[ "$(cat /sys/block/$name/queue/discard_max_bytes)" -gt 0 ]
[ "$(cat /sys/block/$name/queue/write_zeroes_max_bytes)" -gt 0 ]
mkfs.ext4 -q $disk
mount $disk /mnt
head -c 8000000 /dev/urandom > /mnt/before
sum=$(sha256sum < /mnt/before)
u remove vol 2> refused && exit 1
grep -q "in use" refused
# No table of the daemon's lies on it: named, by its number, or by a loop device on a file of its file system, whose path the
# daemon does not even see.
head -c 1048576 /dev/zero > /mnt/image
image=$(losetup --find --show /mnt/image)
for spec in $disk $(cat /sys/block/$name/dev) $image; do
    u create up --table "0 8 linear $spec 0" 2> refused && exit 1
    grep -q "lies on a node of this daemon (by .*$name)" refused || { cat refused; exit 1; }
done
losetup -d $image
rm /mnt/image
# Nor on what the kernel has claimed; and it claims nothing that a table names.
modprobe dm-mod
dmsetup create kernel --table "0 8 linear /dev/ram2 0"
u create up --table "0 8 linear /dev/ram2 0" 2> refused && exit 1
grep -q "is in use by dm-" refused || { cat refused; exit 1; }
dmsetup remove kernel
u create up --table "0 8 linear /dev/ram2 0"
dmsetup create kernel --table "0 8 linear /dev/ram2 0" 2> /dev/null && exit 1
u remove up
echo "claimed"
load() {
    fio --name=load --directory=/mnt --size=8m --rw=randwrite --bs=4k --iodepth=16 --ioengine=libaio --direct=1 \
        --verify=crc32c --numjobs=2 --time_based=0 --loops=8 --fsync=64 --minimal > fio.out
    echo "$1 $(awk -F ';' '{ print $5 }' fio.out | sort -u | tr '\n' ' ')"
}
load killed &
fio=$!
sleep 3
kill -9 $daemon
wait $daemon || true
kill -0 $fio
serve
sleep 1
kill -9 $daemon
wait $daemon || true
serve
wait $fio
load replaced &
fio=$!
sleep 2
u daemon --replace
wait $daemon || true
kill -0 $fio
wait $fio
echo "still $(readlink $UDM_DIR/dev/vol | sed "s,$disk,the same,")"
load stopped &
fio=$!
sleep 2
u daemon --stop
kill -0 $fio
serve
wait $fio
echo 3 > /proc/sys/vm/drop_caches
[ "$(sha256sum < /mnt/before)" = "$sum" ]
echo "matches"
used() { u status pool | awk '{ split($6, n, "/"); print n[1] }'; }
before=$(used)
rm /mnt/load* /mnt/before
sync
fstrim /mnt
[ "$(used)" -lt "$before" ]
echo "trimmed"
umount /mnt
e2fsck -f -n $disk > fsck.out || { cat fsck.out; exit 1; }
echo "clean"
# What nobody uses gets the size at once, whatever the kernel can.
u create small --node=ublk --table "0 8192 ram"
small=$(readlink $UDM_DIR/dev/small)
u load small --table "0 16384 ram" && u resume small
small=$(readlink $UDM_DIR/dev/small)
echo "grown $(blockdev --getsize64 $small)"
u create fixed --node=ublk --readonly --table "0 8192 zero"
fixed=$(readlink $UDM_DIR/dev/fixed)
echo "read-only $(blockdev --getro $fixed)"
dd if=/dev/zero of=$fixed bs=4k count=1 oflag=direct status=none 2> /dev/null && exit 1
u remove small
u remove fixed
[ ! -e "$fixed" ]
[ ! -e "$UDM_DIR/dev/fixed" ]
# A daemon that is not to restore anything clears away what one before has left.
kill -9 $daemon
wait $daemon || true
[ -e $disk ]
serve --no-restore
sleep 2
[ ! -e $disk ]
echo "cleared"
u daemon --stop
! dmesg | grep -E "WARNING|BUG|Oops|I/O error"
echo "quiet"
"#;

/// Runs it, and looks at what it says.
pub(crate) fn a_device() {
    let dir = tempfile::tempdir().unwrap();
    let said = guest::boot(dir.path(), "ublk", ["-r"].map(OsStr::new), SCRIPT, &[UDM]);
    println!("{said}");
    for line in [
        "kind ublk",
        "cache write back, fua 1",
        "claimed",
        "killed 0 ",
        "replaced 0 ",
        "still the same",
        "stopped 0 ",
        "matches",
        "trimmed",
        "clean",
        "grown 8388608",
        "read-only 1",
        "cleared",
        "quiet",
    ] {
        assert!(said.lines().any(|l| l == line), "{line:?} is missing in: {said}");
    }
}
