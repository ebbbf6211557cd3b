#!/bin/sh
# Compares udm's nodes with qemu-storage-daemon's FUSE export, in interleaved rounds, on a file of a tmpfs: fio (io_uring,
# direct I/O, depth 32) on the FUSE files and on loop devices with direct I/O on top of them. Prints for each case the
# median of both, and the median and spread of the ratio udm / qemu. Where the kernel has FUSE over io_uring, udm with it is then
# compared with udm that reads /dev/fuse: the ratio is ring / udm.
#
#   scripts/bench-node.sh [ROUNDS [SECONDS]]
#
# CASES="loop-randread-4k file-randread-4k" chooses among the cases: PATH-RW-BLOCKSIZE. UDM is the program,
# target/release/udm unless set; DEPTH, JOBS and MIB, the size of each file, are fio's. Needs root, FUSE, loop devices, fio, qemu-storage-daemon, 3 GiB in
# SHM (/dev/shm unless set), and an otherwise idle machine.
set -eu
cd "$(dirname "$0")/.."
. scripts/in-turns.sh

rounds=${1:-5}
seconds=${2:-2}
udm=$(realpath "${UDM:-target/release/udm}")
shm=${SHM:-/dev/shm}

for program in fio qemu-storage-daemon losetup "$udm"; do
    command -v "$program" >/dev/null || { echo "SKIP $program is missing"; exit 0; }
done
[ "$(id -u)" = 0 ] || { echo "SKIP loop devices need root"; exit 0; }
[ -e /dev/fuse ] && [ -e /dev/loop-control ] || { echo "SKIP FUSE or loop devices are missing"; exit 0; }

dir=$(mktemp -d)
data=$(mktemp -d "$shm/bench-node.XXXXXX")
qemu=
qemu_loop=
switch=/sys/module/fuse/parameters/enable_uring
was=$(cat $switch 2>/dev/null || echo)
offer() { echo "$1" 2>/dev/null >$switch || true; }
finish() {
    [ -z "$was" ] || offer "$was"
    for of in udm ring; do UDM_DIR=$dir/$of "$udm" daemon --stop --forget >/dev/null 2>&1 || true; done
    [ -z "$qemu_loop" ] || losetup -d "$qemu_loop" || true
    [ -z "$qemu" ] || kill "$qemu" 2>/dev/null || true
    wait 2>/dev/null || true
    rm -rf "$dir" "$data"
}
trap finish EXIT
trap 'exit 1' INT TERM

mib=${MIB:-1024}
bytes=$((mib << 20))
head -c $bytes /dev/urandom >"$data/udm"
cp "$data/udm" "$data/qemu"

make_disk() { # udm|ring
    UDM_DIR=$dir/$1 "$udm" create disk --node=loop --table "0 $((mib * 2048)) linear $data/$1 0"
    # The first look at a mount settles how its requests come.
    ls "$dir/$1/dev" >/dev/null
    UDM_DIR=$dir/$1 "$udm" info --json disk | grep -o '"transport":"[^"]*"'
}

[ -z "$was" ] || offer N
make_disk udm >/dev/null
against=
if [ -n "$was" ]; then
    cp "$data/udm" "$data/ring"
    offer Y
    case $(make_disk ring) in
    *fuse-io_uring*) against=ring ;;
    *) echo "SKIP FUSE over io_uring: the kernel does not offer it" ;;
    esac
    offer "$was"
else
    echo "SKIP FUSE over io_uring: the kernel has none"
fi
touch "$dir/qemu"
qemu-storage-daemon --blockdev "driver=file,node-name=disk,filename=$data/qemu" \
    --export "type=fuse,id=disk,node-name=disk,mountpoint=$dir/qemu,writable=on" &
qemu=$!
tries=0
until [ "$(stat -c %s "$dir/qemu")" = $bytes ]; do
    tries=$((tries + 1))
    [ "$tries" -lt 100 ] || { echo "qemu-storage-daemon did not start"; exit 1; }
    sleep 0.1
done
qemu_loop=$(losetup --find --show --direct-io=on "$dir/qemu")

path() { # server loop|file
    case $1-$2 in
    udm-loop | ring-loop) readlink "$dir/$1/dev/disk" ;;
    udm-file | ring-file) echo "$dir/$1/dev/.files/disk" ;;
    qemu-loop) echo "$qemu_loop" ;;
    qemu-file) echo "$dir/qemu" ;;
    esac
}

one() { # server case
    on=${2%%-*}
    rest=${2#*-}
    fio --name=b --ioengine=io_uring --filename="$(path "$1" "$on")" --size=${mib}m --direct=1 --rw="${rest%-*}" --bs="${rest#*-}" \
        --iodepth="${DEPTH:-32}" --numjobs="${JOBS:-1}" --time_based --runtime="$seconds" --group_reporting \
        --output-format=terse --terse-version=3 | awk -F';' '/^3;/ { print $8 + $49 }'
}

echo "case                      udm       qemu   ratio (least..most) of $rounds rounds; I/Os a second"
cases=${CASES:-loop-randread-4k loop-randwrite-4k loop-read-1m loop-write-1m file-randread-4k file-randwrite-4k}
for case in $cases; do
    in_turns udm qemu "$case"
done
[ -z "$against" ] || echo "case                     ring        udm   ratio (least..most) of $rounds rounds; I/Os a second"
for case in ${against:+$cases}; do
    in_turns "$against" udm "$case"
done
