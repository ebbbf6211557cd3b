#!/bin/bash
# GUEST: the kernel's device mapper and udm over ublk, on the same RAM disks, taking turns: 4K random I/O, one request at a time and
# 32. Prints the ratio of IOPS, udm to kernel: the median of the rounds, and the range.
#
#   run-guest.sh -r exp-ublk.sh UDM [SECONDS [ROUNDS]]
#
# UDM is a release build of this machine's udm. The kernel's devices and udm's never exist at the same time.
. ./guest-lib.sh
UDM=$1 SECS=${2:-3} ROUNDS=${3:-3}
export UDM_DIR=/tmp/udm
MIB=128
SECTORS=$((MIB * 2048))
modprobe ublk_drv && ramdisk 4 $MIB && modprobe dm-thin-pool && modprobe dm-snapshot || exit 1
u() { chroot /host "$UDM" "$@"; }
chroot /host "$UDM" daemon > /dev/null 2>&1 &
for ((i = 0; i < 100; i++)); do u ls > /dev/null 2>&1 && break; sleep 0.2; done

# make WHO NAME TABLE, and the path of what was made.
make() {
    case $1 in
        kernel) dmsetup create "$2" --table "$3" ;;
        udm) u create "$2" --table "$3" ;;
    esac || exit 1
}
reach() {
    case $1 in
        kernel) path=/dev/mapper/$2 ;;
        udm) u node add "$2" --kind ublk > /dev/null || exit 1; path=$(readlink "$UDM_DIR/dev/$2") ;;
    esac
}
unmake() {
    case $1 in
        kernel) dmsetup remove "$2" ;;
        udm) u remove "$2" ;;
    esac || exit 1
}
tell() { case $1 in kernel) dmsetup message "$2" 0 "$3" ;; udm) u message "$2" 0 "$3" ;; esac || exit 1; }
pool() { # WHO: with a volume, 64 KiB blocks
    dd if=/dev/zero of=/dev/ram1 bs=1M count=1 oflag=direct status=none
    make "$1" pool "0 $SECTORS thin-pool /dev/ram1 /dev/ram0 128 0 1 skip_block_zeroing"
    tell "$1" pool "create_thin 0"
    make "$1" vol "0 $SECTORS thin /dev/mapper/pool 0"
    reach "$1" vol
}
run() { # FIO-ARG...: prints IOPS
    fio --name=job --filename="$path" --minimal --terse-version=3 --ioengine=libaio --direct=1 --bs=4k "$@" |
        awk -F ';' '/^3;/ { print ($5 ? 0 : $8 + $49) }'
}
timed() { run --norandommap --time_based --runtime="$SECS" "$@"; }
fill() { dd if=/dev/zero of="$path" bs=1M count=$MIB oflag=direct status=none; }

for ((round = 1; round <= ROUNDS; round++)); do
    for who in kernel udm; do
        make $who lin "0 $SECTORS linear /dev/ram0 0"
        reach $who lin
        for depth in 1 32; do
            echo "linear-read $depth $who $(timed --rw=randread --iodepth=$depth)"
            echo "linear-write $depth $who $(timed --rw=randwrite --iodepth=$depth)"
        done
        unmake $who lin
        make $who str "0 $((2 * SECTORS)) striped 2 128 /dev/ram0 0 /dev/ram2 0"
        reach $who str
        for depth in 1 32; do echo "striped-read $depth $who $(timed --rw=randread --iodepth=$depth)"; done
        unmake $who str
        for depth in 1 32; do
            # Every write to a block that has none yet: once over the volume, a write for each block.
            pool $who
            echo "thin-first-write $depth $who $(run --rw=randwrite --iodepth=$depth --blockalign=64k --size=${MIB}m --io_size=$((MIB / 16))m)"
            fill
            echo "thin-rewrite $depth $who $(timed --rw=randwrite --iodepth=$depth)"
            unmake $who vol
            unmake $who pool
        done
        for depth in 1 32; do
            dd if=/dev/zero of=/dev/ram3 bs=4k count=1 oflag=direct status=none
            make $who base "0 $SECTORS linear /dev/ram0 0"
            make $who origin "0 $SECTORS snapshot-origin /dev/mapper/base"
            make $who snap "0 $SECTORS snapshot /dev/mapper/base /dev/ram3 P 16"
            reach $who origin
            # Half of the chunks are written for the first time and copied, the others not any more.
            echo "snapshot-origin-write $depth $who $(run --norandommap --rw=randwrite --iodepth=$depth --size=32m --io_size=16m)"
            unmake $who snap
            unmake $who origin
            unmake $who base
        done
    done
done | awk '
    function sort(a, n,  i, j, t) {
        for (i = 2; i <= n; i++) for (j = i; j > 1 && a[j - 1] > a[j]; j--) { t = a[j]; a[j] = a[j - 1]; a[j - 1] = t }
    }
    { print "# " $0; fflush() }
    $3 == "kernel" { base[$1 " " $2] = $4; next }
    {
        key = $1 " " $2
        if (!(key in n)) keys[++last] = key
        ratio[key, ++n[key]] = base[key] ? $4 / base[key] : 0
        ours[key] = $4
    }
    END {
        for (i = 1; i <= last; i++) {
            key = keys[i]
            for (j = 1; j <= n[key]; j++) a[j] = ratio[key, j]
            sort(a, n[key])
            split(key, f, " ")
            printf "%-22s depth %-3s %.2f (%.2f-%.2f)  udm %d, kernel %d IOPS in the last round\n", f[1], f[2], \
                a[int((n[key] + 1) / 2)], a[1], a[n[key]], ours[key], base[key]
        }
    }'
u daemon --stop
