#!/bin/bash
# GUEST: what writes cost the kernel when the volume has one snapshot, beside a plain volume. A new snapshot for each row.
#
#   MEM=6G run-guest.sh -d 2500M -t 1800 exp-c-snapshot.sh [MIB,... [KINDS [CHUNKS [MODES]]]]
#
# KINDS: brd, virtio (/dev/vda). CHUNKS: sectors. MODES: nofsync (the last close writes everything back), fsync, held
# (somebody else has the device open, so that dd fills the page cache only), direct.
. ./guest-lib.sh
SIZES=${1:-10,100,1000} KINDS=${2:-brd,virtio} CHUNKS=${3:-16,1024} MODES=${4:-nofsync,fsync}
ORIGIN=$((1100 * 2048)) COW=$((1200 * 2048))
modprobe dm-snapshot || exit 1

# row LABEL DEVICE MIB DD-ARG...: seconds, as dd counts them, and the speed.
row() {
    local label=$1 device=$2 mib=$3
    shift 3
    echo 3 > /proc/sys/vm/drop_caches
    dd if=/dev/zero of="$device" bs=4k count=$((mib * 256)) "$@" 2>&1 | awk -v label="$label" -v bytes=$((mib << 20)) '
        / copied, / { sub(/.* copied, /, ""); printf "%-34s %9.3f s %8.1f MB/s\n", label, $1, bytes / 1e6 / $1 }
        /rror|No space/'
}

for kind in ${KINDS//,/ }; do
    case $kind in
        brd) ramdisk 1 2304; disk=/dev/ram0 ;;
        virtio)
            rmmod brd 2> /dev/null
            disk=/dev/vda
            dd if=/dev/zero of=$disk bs=1M count=2300 oflag=direct status=none || exit 1 ;;
        *) echo "a kind is brd or virtio, not $kind" >&2; exit 2 ;;
    esac
    for mib in ${SIZES//,/ }; do for mode in ${MODES//,/ }; do for chunk in 0 ${CHUNKS//,/ }; do
        dmsetup create base --table "0 $ORIGIN linear $disk 0"
        dmsetup create cow --table "0 $COW linear $disk $ORIGIN"
        device=/dev/mapper/base label="$kind ${mib}M $mode plain"
        if [ "$chunk" != 0 ]; then
            dd if=/dev/zero of=/dev/mapper/cow bs=4k count=1 conv=fsync status=none
            dmsetup create snap --table "0 $ORIGIN snapshot /dev/mapper/base /dev/mapper/cow P $chunk"
            dmsetup create org --table "0 $ORIGIN snapshot-origin /dev/mapper/base"
            device=/dev/mapper/org label="$kind ${mib}M $mode chunk=$((chunk / 2))K"
        fi
        case $mode in
            nofsync) row "$label" $device "$mib" ;;
            fsync) row "$label" $device "$mib" conv=fsync ;;
            direct) row "$label" $device "$mib" oflag=direct ;;
            held) exec 9<> $device; row "$label" $device "$mib" conv=notrunc; sync; exec 9>&- ;;
        esac
        if [ "$chunk" != 0 ]; then
            sync
            echo "    store: $(dmsetup status snap | cut -d ' ' -f 4-)"
            dmsetup remove org
            dmsetup remove snap
        fi
        dmsetup remove cow
        dmsetup remove base
    done; done; done
done
