#!/bin/bash
# GUEST: how many blocks a copy of a thin volume maps in the kernel, and how many a pool that skips zeroes would.
#
#   MEM=6G run-guest.sh -f TREE.tar -t 1800 exp-d-thin.sh [VOLUME_MIB [TREE.tar]]
#
# An ext4 with the tree on volume 0, copied by plain writes to volume 1; by dd's conv=sparse with the block's size, which
# leaves out what skipping would leave out, to volume 2; then the tree is deleted, and trimmed.
. ./guest-lib.sh
MIB=${1:-1024} TREE=${2:-$(echo ./*.tar)} BLOCK=128
SECTORS=$((MIB * 2048)) META=$((64 * 2048))
modprobe dm-thin-pool || exit 1
modprobe ext4 || exit 1
ramdisk 1 $((MIB * 3 + 200)) nofill || exit 1
dmsetup create meta --table "0 $META linear /dev/ram0 0"
dmsetup create data --table "0 $((SECTORS * 3)) linear /dev/ram0 $META"

mapped() { echo $(($(dmsetup status "t$1" | cut -d ' ' -f 4) / BLOCK)); }
# Blocks of a volume that hold a byte other than zero.
nonzero() {
    dd if="/dev/mapper/t$1" of=/tmp/sparse bs=64K conv=sparse status=none
    echo $(($(stat -c %b /tmp/sparse) / BLOCK))
    rm -f /tmp/sparse
}
row() { printf '%-44s %6s mapped %6s hold anything\n' "$1" "$(mapped "$2")" "$(nonzero "$2")"; }

for how in default nodiscard; do
    extra=()
    [ $how = default ] || extra=(-E nodiscard,lazy_itable_init=0,lazy_journal_init=0)
    echo "mkfs.ext4 $how, volumes of $((SECTORS / BLOCK)) blocks of 64 KiB"
    dd if=/dev/zero of=/dev/mapper/meta bs=4k count=1 conv=fsync status=none
    dmsetup create pool --table "0 $((SECTORS * 3)) thin-pool /dev/mapper/meta /dev/mapper/data $BLOCK 0"
    for i in 0 1 2; do
        dmsetup message pool 0 "create_thin $i"
        dmsetup create t$i --table "0 $SECTORS thin /dev/mapper/pool $i"
    done
    mkfs.ext4 -q -F "${extra[@]}" /dev/mapper/t0
    row "after mkfs" 0
    mount /dev/mapper/t0 /mnt
    tar -C /mnt -xf "$TREE"
    sync
    echo "tree: $(find /mnt -type f | wc -l) files, $(du -sm /mnt | cut -f 1) MiB"
    umount /mnt
    row "with the tree" 0
    dd if=/dev/mapper/t0 of=/dev/mapper/t1 bs=1M conv=fsync status=none
    row "its copy by plain writes" 1
    dd if=/dev/mapper/t0 of=/dev/mapper/t2 bs=64K conv=sparse,fsync status=none
    row "its copy without the blocks that are zero" 2
    mount /dev/mapper/t0 /mnt
    rm -rf /mnt/*/*
    sync
    umount /mnt
    row "the tree deleted" 0
    mount /dev/mapper/t0 /mnt
    fstrim /mnt
    umount /mnt
    row "and trimmed" 0
    echo "pool: $(dmsetup status pool)"
    for i in 0 1 2; do dmsetup remove t$i; done
    dmsetup remove pool
    thin_check /dev/mapper/meta > /dev/null 2>&1 && echo "thin_check: clean"
done
