#!/bin/bash
# GUEST: makes exception stores with the kernel's snapshot targets and leaves of each, in ./recorded: NAME.txt (what was
# done, what dmsetup said, checksums of origin and snapshot), NAME.origin and NAME.cow. Started by record.sh.
set -u
. ./guest-lib.sh
mkdir -p recorded
modprobe dm-snapshot || exit 1
modprobe dm-delay || exit 1
FAILED=0

say() { echo "$*" >> "$TXT"; }
run() {
    local status=0
    say "+ $*"
    "$@" > /tmp/said 2>&1 || status=$?
    sed 's/^/! /' /tmp/said >> "$TXT"
    ((status == 0)) || say "? $status"
    return $status
}
# write org|snap SECTOR COUNT GENERATION: the origin is volume 1 of the pattern, the snapshot volume 2.
write() {
    local volume=1
    [ "$1" = org ] || volume=2
    run put "/dev/mapper/$1" $volume "${@:2}"
}
status() { local name; for name; do say "status $name $(dmsetup status "$name")"; done; }
sums() { local name; for name; do say "volume $name $(blockdev --getsz "/dev/mapper/$name") $(digest "/dev/mapper/$name")"; done; }

# begin NAME ORIGIN_SECTORS COW_SECTORS P|PO CHUNK: an origin filled with generation 1, and an empty snapshot of it.
begin() {
    NAME=$1 SIZE=$2 STORE=$4 CHUNK=$5
    TXT=$PWD/recorded/$NAME.txt
    : > "$TXT"
    ORG=$(image origin 64) COW=$(image cow 64)
    dmsetup create base --table "0 $2 linear $ORG 0"
    dmsetup create cow --table "0 $3 linear $COW 0"
    run put /dev/mapper/base 1 0 "$SIZE" 1
    start
}
# The snapshot first: the origin learns at its resume how small the pieces are that its writes are to be split in. With
# one that was resumed before, the kernel would copy the first chunk of a large write and lose the others.
start() {
    run dmsetup create snap --table "0 $SIZE snapshot /dev/mapper/base /dev/mapper/cow $STORE $CHUNK"
    run dmsetup create org --table "0 $SIZE snapshot-origin /dev/mapper/base"
}
# keep: the devices as they are on disk, with nothing active over them.
keep() {
    local what
    for what in base:origin cow:cow; do
        dd if="/dev/mapper/${what%:*}" of="recorded/$NAME.${what#*:}" bs=64K conv=sparse status=none
        truncate -s $(($(blockdev --getsz "/dev/mapper/${what%:*}") * 512)) "recorded/$NAME.${what#*:}"
    done
    dmsetup remove cow
    dmsetup remove base
    [ "$(dmsetup ls)" = 'No devices found' ] || { echo "$NAME: devices are left"; dmsetup ls; FAILED=1; }
    losetup -D
    rm -f /tmp/*.img
    echo "recorded $NAME: $(grep -c '^+' "$TXT") commands"
}
end() {
    sync
    sums org snap
    say "table org $(dmsetup table org)"
    say "table snap $(dmsetup table snap)"
    status org snap
    dmsetup remove snap
    dmsetup remove org
    keep
}

# Chunks of both kinds: copied because the origin was written, written in the snapshot; whole ones and parts.
basic() {
    local c=$CHUNK
    write org 0 "$c" 2
    write org $((5 * c + 3)) 7 2
    write snap $((7 * c + 1)) 2 3
    write snap $((8 * c)) "$c" 3
    write snap $((5 * c)) 4 3
    write org $((9 * c - 4)) 8 4
    write org $((SIZE - 8)) 8 4
    write snap $((SIZE - 16)) 4 5
}
begin p-8k 16384 8192 P 16; basic; end
begin po-8k 16384 8192 PO 16; basic; end
begin p-16k 16384 8192 P 32; basic; end
begin po-512k 16396 40960 PO 1024; basic; end

# Several areas: backwards, so that exceptions are not in the order of their chunks, and some runs that are.
begin areas-8k 24576 32768 P 16
for ((chunk = 1535; chunk >= 1000; chunk--)); do put /dev/mapper/org 1 $((chunk * 16)) 4 2; done
say "# one page of each chunk of the origin from 1535 down to 1000, generation 2"
write org 0 8192 3
write snap 12000 800 4
end
# Exactly one area of 512 exceptions, so that the next one is there, and empty.
begin area-full-8k 16384 16384 P 16
write org 0 8192 2
end

# An empty store that has been used by nobody but the constructor.
begin empty-16k 8192 1024 PO 32
end

# A snapshot taken up again after it was stopped, its header's chunk size other than the table's.
begin other-chunk-8k 16384 8192 P 16
write org 0 100 2
dmsetup remove snap
dmsetup remove org
CHUNK=64
start
write org 4096 100 3
end

# Merging, stopped half-way. Writes to the origin are slow, and no two chunks go in one.
half_merged() {
    local i done=0 dm
    for i in 5 3 9 1 7 2 8 4 6 0; do
        for ((dm = 0; dm < 12; dm++)); do put /dev/mapper/snap 2 $(((dm * 40 + i * 3) * CHUNK)) "$CHUNK" $((i + 2)); done
    done
    say "# chunks (d * 40 + i * 3) of the snapshot for i in 5 3 9 1 7 2 8 4 6 0, d from 0 to 11: generation i + 2"
    write snap $((490 * CHUNK)) $((6 * CHUNK)) 50
    sums org snap
    status snap
    dmsetup remove snap
    dmsetup remove org
    dmsetup create slow --table "0 $SIZE delay /dev/mapper/base 0 0 /dev/mapper/base 0 40"
    run dmsetup create merge --table "0 $SIZE snapshot-merge /dev/mapper/slow /dev/mapper/cow $STORE $CHUNK"
    for ((i = 0; i < 500; i++)); do
        set -- $(dmsetup status --noflush merge)
        ((${4%/*} > ${5:-0} + 60 * CHUNK)) || break
        done=$4
    done
    say "# interrupted after $done"
    run dmsetup suspend merge
    status merge
    say "table merge $(dmsetup table merge)"
    dmsetup remove merge
    dmsetup remove slow
    start
    sums org snap
    status snap
    dmsetup remove snap
    dmsetup remove org
    keep
}
begin half-merged-8k 8192 4096 P 16; half_merged
begin half-merged-po-16k 16384 8192 PO 32; half_merged

# Merged to its end: the store is empty again.
begin merged-8k 8192 4096 P 16
write snap 0 1024 2
write snap 2000 8 3
sums org snap
dmsetup remove snap
dmsetup remove org
run dmsetup create merge --table "0 $SIZE snapshot-merge /dev/mapper/base /dev/mapper/cow $STORE $CHUNK"
for ((i = 0; i < 500; i++)); do
    set -- $(dmsetup status merge)
    [ "${4%/*}" != "$5" ] || break
    sleep 0.1
done
status merge
sums merge
dmsetup remove merge
keep

# A store that ran full: by a write to the origin (both kinds), by one to the snapshot (Invalid with P, Overflow with PO).
full() { # WHERE
    write "$1" 0 1024 2
    status snap
    run dd if=/dev/mapper/snap of=/dev/null bs=4k count=1 iflag=direct
    dmsetup remove snap
    dmsetup remove org
    start
    status snap
    dmsetup remove snap
    dmsetup remove org
    say "volume base $SIZE $(digest /dev/mapper/base)"
    keep
}
begin invalid-p-8k 8192 256 P 16; full org
begin invalid-po-8k 8192 256 PO 16; full org
begin invalid-snap-p-8k 8192 256 P 16; full snap
begin overflow-po-8k 8192 256 PO 16; full snap
exit $FAILED
