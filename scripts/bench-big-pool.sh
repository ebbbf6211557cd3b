#!/usr/bin/env bash
# A pool whose volume has 16 TiB and 4 million mapped blocks of 64 KiB: how long it takes to open, to read from them at
# random, and how much memory the daemon takes at its peak. The data device is a `null:` one, so that nothing is measured
# but the pool. Prints a table. UDM is the program, target/release/udm unless set; BLOCKS and OUT (a folder for 500 MiB)
# may be set.
set -euo pipefail
cd "$(dirname "$0")/.."
udm=$(realpath "${UDM:-target/release/udm}")
blocks=${BLOCKS:-4194304}
command -v fio >/dev/null || { echo 'bench-big-pool.sh: needs fio' >&2; exit 2; }
dir=$(mktemp -d "${OUT:-${TMPDIR:-/tmp}}/udm-big.XXXXXX")
export UDM_DIR=$dir/run
finish() {
    "$udm" daemon --stop >/dev/null 2>&1 || true
    rm -rf "$dir"
}
trap finish EXIT
now() { echo "${EPOCHREALTIME/./}"; }
took() { awk -v a="$1" -v b="$2" 'BEGIN { printf "%.2f", (b - a) / 1e6 }'; }

# One mapping in 64 blocks of the first 16 TiB, in another order on the data device than in the volume: no run is longer
# than a block.
awk -v n="$blocks" 'BEGIN {
    printf "<superblock uuid=\"\" time=\"0\" transaction=\"0\" version=\"2\" data_block_size=\"128\" nr_data_blocks=\"%d\">\n", n
    printf "<device dev_id=\"1\" mapped_blocks=\"%d\" transaction=\"0\" creation_time=\"0\" snap_time=\"0\">\n", n
    for (i = 0; i < n; i++)
        printf "<single_mapping origin_block=\"%d\" data_block=\"%d\" time=\"0\"/>\n", i * 64, (i * 5) % n
    print "</device>\n</superblock>"
}' >"$dir/pool.xml"
truncate -s 512M "$dir/meta"
start=$(now)
"$udm" thin restore -i "$dir/pool.xml" -o "$dir/meta"
restored=$(took "$start" "$(now)")
rm "$dir/pool.xml"

"$udm" version >/dev/null
pid=$("$udm" daemon --status | sed -n 's/.*process \([0-9]*\).*/\1/p' | head -1)
sectors=$((blocks * 128))
start=$(now)
"$udm" create pool --table "0 $sectors thin-pool $dir/meta null:size=$((sectors / 2))K 128 0"
"$udm" create big --table "0 34359738368 thin /dev/mapper/pool 1"
opened=$(took "$start" "$(now)")

start=$(now)
# 4 KiB at the beginning of one of the 4 MiB that have a mapped block, twice as many as there are blocks: fio has no order of
# such places without repetition.
fio --name=read --ioengine=nbd --uri="nbd+unix:///big?socket=$UDM_DIR/nbd.sock" --rw=randread --bs=4k --blockalign=4m \
    --size=16t --number_ios=$((blocks * 2)) --iodepth=32 --norandommap --minimal >"$dir/fio.out"
read=$(took "$start" "$(now)")
peak=$(awk '/VmHWM/ { printf "%.0f", $2 / 1024 }' "/proc/$pid/status")

echo '| what | measured | limit |'
echo '|---|---|---|'
echo "| \`udm thin restore\` of $blocks mappings | $restored s | |"
echo "| open the pool and its 16 TiB volume | $opened s | 2 s |"
echo "| $((blocks * 2)) reads at random, 4 KiB, depth 32, over NBD | $read s | |"
echo "| the daemon's memory at its peak | $peak MiB | 256 MiB |"
"$udm" status
