#!/bin/sh
# Compares udm's NBD server with nbdkit's memory plugin, in interleaved rounds on a unix socket: fio's nbd engine
# (4 KiB, random, depth 32, 1 and 2 jobs) and nbdcopy. Prints for each case the median of both, and the median and
# spread of the ratio udm / nbdkit.
#
#   scripts/bench-nbd.sh [ROUNDS [SECONDS]]
#
# CASES="randread-1 copy-read" chooses among the cases. UDM is the program that serves, target/release/udm unless set:
# `udm run` with a device of memory; with another name it is called as the example nbd_mem of the export crate is, which
# serves the same memory without a mapped device: cargo build --release -p udm-export --example nbd_mem.
# Needs fio with the nbd engine, nbdkit and nbdcopy, and an otherwise idle machine.
set -eu
cd "$(dirname "$0")/.."
. scripts/in-turns.sh

rounds=${1:-5}
seconds=${2:-2}
server=${UDM:-target/release/udm}
dir=$(mktemp -d)
pids=
trap 'kill $pids 2>/dev/null || true; rm -rf "$dir"' EXIT INT TERM

for program in fio nbdkit nbdcopy "$server"; do
    command -v "$program" >/dev/null || { echo "SKIP $program is missing"; exit 0; }
done

case $server in
*/udm | udm) "$server" run --nbd "$dir/udm" 'disk,,,,0 2097152 ram' >/dev/null & ;;
*) "$server" "$dir/udm" 1024 >/dev/null & ;;
esac
pids=$!
nbdkit -f -U "$dir/nbdkit" memory 1G &
pids="$pids $!"
for socket in udm nbdkit; do
    tries=0
    until [ -S "$dir/$socket" ]; do
        tries=$((tries + 1))
        [ "$tries" -lt 100 ] || { echo "$socket did not start"; exit 1; }
        sleep 0.1
    done
done

uri() { echo "nbd+unix:///?socket=$dir/$1"; }

# fio's IOPS: one number.
fio_iops() { # server rw jobs
    fio --name=b --ioengine=nbd --uri="$(uri "$1")" --rw="$2" --bs=4k --iodepth=32 --numjobs="$3" --time_based \
        --runtime="$seconds" --group_reporting --output-format=terse --terse-version=3 |
        awk -F';' '/^3;/ { print $8 + $49 }'
}

# nbdcopy's MiB/s over the whole device.
copy_rate() { # server read|write
    start=$(date +%s%N)
    if [ "$2" = read ]; then
        nbdcopy "$(uri "$1")" null:
    else
        nbdcopy --allocated "$dir/source" "$(uri "$1")"
    fi
    awk "BEGIN { print 1024 * 1e9 / ($(date +%s%N) - $start) }"
}

one() { # server case
    case $2 in
    randread-*) fio_iops "$1" randread "${2#*-}" ;;
    randwrite-*) fio_iops "$1" randwrite "${2#*-}" ;;
    copy-*) copy_rate "$1" "${2#*-}" ;;
    esac
}

# Both devices hold data everywhere.
head -c 1073741824 /dev/urandom >"$dir/source"
nbdcopy "$dir/source" "$(uri udm)"
nbdcopy "$dir/source" "$(uri nbdkit)"

echo "case                      udm     nbdkit   ratio (least..most) of $rounds rounds; IOPS, MiB/s"
for case in ${CASES:-randread-1 randread-2 randwrite-1 randwrite-2 copy-read copy-write}; do
    in_turns udm nbdkit "$case"
done
