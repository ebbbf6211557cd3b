#!/bin/bash
# Compares udm's vhost-user-blk server with qemu-storage-daemon's, in interleaved rounds: 4 KiB random reads at depth 1, 32
# and 128, by interrupt and polled, by udm's own front end. udm serves a `ram` device; qemu-storage-daemon a file on tmpfs. Prints
# for each case the median of both, and the median and spread of the ratio. Then the same of the `ram` device over
# vhost-user and in process, and at depth 1 by interrupt of two threads that only wake each other.
#
#   scripts/bench-vhost.sh [ROUNDS [SECONDS]]
#
# CASES="poll-32 interrupt-1" chooses among the cases. UDM is the program, target/release/udm unless set. QSD_POLL=0 has
# qemu-storage-daemon's thread sleep in the polled cases, too. Needs qemu-storage-daemon and an otherwise idle machine with a CPU
# for each side.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/in-turns.sh

rounds=${1:-5}
seconds=${2:-2}
udm=${UDM:-target/release/udm}
size=$((256 << 20))
dir=$(mktemp -d)
tmpfs=$(mktemp -d /dev/shm/udm-bench.XXXXXX)
pids=()
cleanup() {
    UDM_DIR=$dir/udm "$udm" daemon --stop >/dev/null 2>&1 || true
    [ ${#pids[@]} = 0 ] || kill "${pids[@]}" 2>/dev/null || true
    rm -rf "$dir" "$tmpfs"
}
trap cleanup EXIT
trap 'exit 1' INT TERM

for program in qemu-storage-daemon "$udm" awk; do
    command -v "$program" >/dev/null || { echo "SKIP $program is missing"; exit 0; }
done

export UDM_DIR=$dir/udm
"$udm" create ram --table "0 $((size / 512)) ram"
for mode in interrupt adaptive polled; do
    "$udm" export ram --vhost-user "$dir/udm-$mode" --queues 1 --mode "$mode" >/dev/null
done
# Both hold data everywhere.
"$udm" bench --device "vhost-user:$dir/udm-interrupt" --rw write --bs 1m --number-ios $((size >> 20)) >/dev/null
head -c $size /dev/urandom >"$tmpfs/disk"
for mode in interrupt poll; do
    most=$([ $mode = poll ] && echo "${QSD_POLL:-32768}" || echo 0)
    qemu-storage-daemon --object "iothread,id=thread,poll-max-ns=$most" \
        --blockdev "driver=file,node-name=file,filename=$tmpfs/disk" --blockdev driver=raw,node-name=disk,file=file \
        --export "type=vhost-user-blk,id=export,node-name=disk,addr.type=unix,addr.path=$dir/qsd-$mode,writable=on,iothread=thread" &
    pids+=($!)
    for _ in $(seq 100); do [ -S "$dir/qsd-$mode" ] && break; sleep 0.1; done
    [ -S "$dir/qsd-$mode" ] || { echo "qemu-storage-daemon did not start"; exit 1; }
done

iops() { # DEVICE COMPLETION DEPTH
    "$udm" bench "${@:4}" --device "$1" --rw randread --bs 4k --iodepth "$3" --completion "$2" --runtime "$seconds" \
        --lat off --json | sed -n 's/^ *"iops": *\([0-9][0-9.]*\).*/\1/p' | awk '$1 > 0 { print; exit }'
}

one() { # WHO CASE: one figure
    local completion=${2%-*} depth=${2##*-} mode=polled
    [ "$completion" = poll ] || mode=$completion
    case $1 in
        udm) iops "vhost-user:$dir/udm-$mode" "$completion" "$depth" ;;
        qsd) iops "vhost-user:$dir/qsd-${completion/adaptive/poll}" "$completion" "$depth" ;;
        limit) "$limit" limit "$seconds" ;;
        in-process) iops ram "$completion" "$depth" --concise "ram,,,,0 $((size / 512)) ram" ;;
    esac
}

# Two threads that sleep and wake each other: no server that sleeps, with a driver that does, is faster at depth 1.
limit=${LIMIT:-target/release/examples/vhost_mem}
cases=${CASES:-interrupt-1 interrupt-32 interrupt-128 adaptive-1 adaptive-32 poll-1 poll-32 poll-128}
echo "case                      udm        qsd   ratio (least..most) of $rounds rounds; IOPS"
for case in $cases; do in_turns udm qsd "$case"; done
echo "case               vhost-user in process   ratio"
for case in $cases; do in_turns udm in-process "$case"; done
if [ -x "$limit" ]; then
    echo "case               vhost-user      limit   ratio"
    for case in $cases; do
        case $case in interrupt-1 | adaptive-1) in_turns udm limit "$case" ;; esac
    done
else
    echo "SKIP the limit of depth 1 by interrupt: cargo build --release -p udm-export --example vhost_mem"
fi
