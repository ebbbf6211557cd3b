#!/bin/busybox sh
# shellcheck shell=dash
# GUEST: the first process. Mounts what Linux needs, runs /share/run with its arguments in
# /share/args, leaves its exit status in /share/rc and the kernel's log in /share/dmesg, powers off.
export PATH=/bin HOME=/root TERM=dumb LC_ALL=C
# There is no udev: libdevmapper makes the nodes itself and does not wait for cookies.
export DM_DISABLE_UDEV=1
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mkdir -p /dev/pts /dev/shm /run
mount -t devpts devpts /dev/pts
mount -t tmpfs -o mode=1777 shm /dev/shm
mount -t tmpfs run /run
mkdir -p /run/lock /run/lvm
mount -t tmpfs tmp /tmp
ip link set lo up
# The console is for the script's output; the kernel's log is saved at the end.
echo 1 > /proc/sys/kernel/printk
for module in virtio_pci virtio_blk 9pnet_virtio 9p dm-mod loop configfs; do
    modprobe $module 2>/dev/null
done
mount -t configfs configfs /sys/kernel/config
mount -t 9p -o trans=virtio,version=9p2000.L,msize=262144,cache=none share /share
# This machine's root, where run-guest.sh -r shows it.
if mount -t 9p -o trans=virtio,version=9p2000.L,msize=262144,cache=loose,ro host /host 2>/dev/null; then
    mkdir -p /run/host-tmp
    mount -o bind /host/tmp /run/host-tmp
    for name in proc dev tmp; do mount -o bind /$name /host/$name; done
    # Its /tmp is the guest's, but for the project's folder, if it lies there.
    if keep=$(cat /share/keep 2>/dev/null); then
        mkdir -p "/tmp/$keep"
        mount -o bind "/run/host-tmp/$keep" "/host/tmp/$keep"
    fi
fi
echo "LAB: up, kernel $(uname -r)"
cd /share || echo "LAB: cannot enter the share"
# The arguments are words without spaces.
# shellcheck disable=SC2046
{ bash ./run $(cat args); echo $? > /tmp/rc; } 2>&1 | tee out
cp /tmp/rc rc
dmesg > dmesg
sync
cd /
umount /share
poweroff -f
