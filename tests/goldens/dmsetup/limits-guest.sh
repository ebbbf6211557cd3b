#!/bin/bash
# GUEST: the request queues of the kernel's mapped devices, as /sys shows them.
set -u
. ./guest-lib.sh
null_block lim0 128 memory_backed=1 discard=1 || exit 1
null_block lim1 128 memory_backed=1 discard=1 || exit 1
null_block lim4k 128 memory_backed=1 blocksize=4096 || exit 1
for module in dm-thin-pool dm-snapshot; do modprobe $module || exit 1; done
FIELDS=(logical_block_size physical_block_size minimum_io_size optimal_io_size discard_granularity discard_max_bytes
    write_zeroes_max_bytes fua)

row() { # LABEL KERNEL-NAME
    local field values=()
    for field in "${FIELDS[@]}"; do values+=("$(cat "/sys/block/$2/queue/$field")"); done
    # The cache is named by a sentence.
    printf '%-34s %7s %8s %7s %7s %11s %11s %11s %4s  %s\n' "$1" "${values[@]}" "$(cat "/sys/block/$2/queue/write_cache")"
}
device() { # LABEL NAME TABLE
    dmsetup create "$2" --table "$3" || exit 1
    row "$1" "dm-$(dmsetup info -c --noheadings -o minor "$2")"
}

echo "# /sys/block/*/queue of the reference kernel; written by record.sh. Sizes in bytes."
printf '%-34s %7s %8s %7s %7s %11s %11s %11s %4s  %s\n' '# device' logical physical minimum optimal discard \
    discard-max zeroes-max fua cache
row 'null_blk, 512' lim0
row 'null_blk, 4096, no discard' lim4k
device 'linear' lin '0 65536 linear /dev/lim0 0'
device 'linear on 4096' lin4k '0 65536 linear /dev/lim4k 0'
device 'striped 2 128' str '0 65536 striped 2 128 /dev/lim0 0 /dev/lim1 0'
dmsetup remove str
for features in '128 0' '128 0 1 no_discard_passdown' '128 0 1 ignore_discard' '2048 0' '384 0'; do
    dmsetup create meta --table '0 8192 linear /dev/lim0 65536'
    dd if=/dev/zero of=/dev/mapper/meta bs=4k count=1 conv=fsync status=none
    device "thin-pool $features" pool "0 131072 thin-pool /dev/mapper/meta /dev/lim1 $features"
    dmsetup message pool 0 'create_thin 0'
    device "thin" thin '0 65536 thin /dev/mapper/pool 0'
    dmsetup remove thin
    device "thin, origin with 4096" thin '0 65536 thin /dev/mapper/pool 0 /dev/mapper/lin4k'
    dmsetup remove thin
    dmsetup remove pool
    dmsetup remove meta
done
for store in 'P 16' 'PO 1024' 'N 16' 'P 16 1 discard_zeroes_cow' 'P 16 2 discard_zeroes_cow discard_passdown_origin'; do
    dd if=/dev/zero of=/dev/lim1 bs=4k count=1 conv=fsync status=none
    device "snapshot $store" snap "0 65536 snapshot /dev/mapper/lin /dev/lim1 $store"
    device 'snapshot-origin of it' origin '0 65536 snapshot-origin /dev/mapper/lin'
    dmsetup remove origin
    dmsetup remove snap
done
dd if=/dev/zero of=/dev/lim1 bs=4k count=1 conv=fsync status=none
device 'snapshot-origin without a snapshot' origin '0 65536 snapshot-origin /dev/mapper/lin'
dmsetup remove origin
device 'snapshot-merge P 16' merge '0 65536 snapshot-merge /dev/mapper/lin /dev/lim1 P 16'
dmsetup remove merge
dmsetup remove lin
dmsetup remove lin4k
for name in lim0 lim1 lim4k; do
    echo 0 > "/sys/kernel/config/nullb/$name/power"
    rmdir "/sys/kernel/config/nullb/$name"
done
