#!/bin/bash
# GUEST: makes thin pools with the kernel's thin-pool and leaves of each, in ./recorded: NAME.txt (what was done, what
# dmsetup said, a checksum of every volume), NAME.xml (thin_dump) and the devices' images. Started by record.sh.
set -u
. ./guest-lib.sh
mkdir -p recorded
modprobe dm-thin-pool || exit 1
FAILED=0

# say WORD...: a line of the record.
say() { echo "$*" >> "$TXT"; }
# run COMMAND...: does it and records it; what it says goes there too.
run() {
    local status=0
    say "+ $*"
    "$@" > /tmp/said 2>&1 || status=$?
    sed 's/^/! /' /tmp/said >> "$TXT"
    ((status == 0)) || say "? $status"
    return $status
}
message() { run dmsetup message pool 0 "$*"; }
write() { run put "/dev/mapper/t$1" "$1" "${@:2}"; }
discard() { run blkdiscard -o $(($2 * 512)) -l $(($3 * 512)) "/dev/mapper/t$1"; }
thin() { run dmsetup create "t$1" --table "0 $2 thin /dev/mapper/pool $1${3:+ $3}"; }
# A snapshot of a live volume.
snap() { run dmsetup suspend "t$2"; message create_snap "$1" "$2"; run dmsetup resume "t$2"; }

# begin NAME META_KIB DATA_MIB BLOCK_SECTORS [FEATURES]: an empty pool.
begin() {
    NAME=$1 BLOCK=$4 FEATURES=${5:-}
    TXT=$PWD/recorded/$NAME.txt
    : > "$TXT"
    META=$(image meta 64) DATA=$(image data 4096)
    dmsetup create meta --table "0 $(($2 * 2)) linear $META 0"
    dmsetup create data --table "0 $(($3 * 2048)) linear $DATA 0"
    run dmsetup create pool --table "$(pool_table)"
}
pool_table() {
    echo "0 $(blockdev --getsz /dev/mapper/data) thin-pool /dev/mapper/meta /dev/mapper/data $BLOCK 0 $FEATURES"
}
# reload: the pool with what its devices are now.
reload() {
    run dmsetup suspend pool
    run dmsetup load pool --table "$(pool_table)"
    run dmsetup resume pool
}
# grow DEVICE SECTORS
grow() {
    local beneath=$META
    [ "$1" = meta ] || beneath=$DATA
    dmsetup suspend "$1"
    dmsetup load "$1" --table "0 $2 linear $beneath 0"
    dmsetup resume "$1"
    say "# $1 has $2 sectors now"
    reload
}

# end [VOLUME:SECTORS ...]: what there is, then takes it all down and keeps the images. Volumes that are not active are
# activated for their checksum first.
end() {
    local item id sectors
    sync
    for item; do
        id=${item%%:*} sectors=${item#*:}
        [ -e "/dev/mapper/t$id" ] || dmsetup create "t$id" --table "0 $sectors thin /dev/mapper/pool $id" ||
            { say "# volume $id does not start"; continue; }
        say "volume $id $(blockdev --getsz "/dev/mapper/t$id") $(digest "/dev/mapper/t$id")"
    done
    for item in $(dmsetup ls | awk '$1 ~ /^(t[0-9]+|pool)$/ { print $1 }' | sort -V); do
        say "table $item $(dmsetup table "$item")"
        say "status $item $(dmsetup status --noflush "$item")"
    done
    for item in $(dmsetup ls | awk '/^t[0-9]/ { print $1 }'); do dmsetup remove "$item"; done
    dmsetup remove pool
    thin_check /dev/mapper/meta > /tmp/check 2>&1
    say "thin_check $?"
    sed 's/^/! /' /tmp/check >> "$TXT"
    thin_dump /dev/mapper/meta > "recorded/$NAME.xml" 2> /dev/null
    dd if=/dev/mapper/meta of="recorded/$NAME.meta" bs=64K conv=sparse status=none
    truncate -s $(($(blockdev --getsz /dev/mapper/meta) * 512)) "recorded/$NAME.meta"
    if [ "${KEEP_DATA:-1}" = 1 ]; then
        dd if=/dev/mapper/data of="recorded/$NAME.data" bs=64K conv=sparse status=none
        truncate -s $(($(blockdev --getsz /dev/mapper/data) * 512)) "recorded/$NAME.data"
    fi
    dmsetup remove meta
    dmsetup remove data
    [ -z "$(dmsetup ls | grep -v 'No devices')" ] || { echo "$NAME: devices are left"; dmsetup ls; FAILED=1; }
    losetup -D
    rm -f /tmp/*.img
    echo "recorded $NAME: $(grep -c '^+' "$TXT") commands"
}

# Volumes, snapshots of snapshots, partial overwrites, discards, a deletion, counts above two.
basic() {
    local b=$BLOCK i
    message create_thin 0
    message create_thin 1
    message create_thin 2
    thin 0 32768
    thin 1 20560
    thin 2 32768
    write 0 0 16384 1
    write 1 3 5 1
    write 1 $((b - 4)) 8 1
    write 1 20552 8 1
    write 2 0 $((4 * b)) 1
    snap 10 0
    write 0 "$b" $((2 * b)) 2
    write 0 $((5 * b + 8)) 8 2
    message create_snap 11 10
    thin 10 32768
    thin 11 32768
    write 10 $((3 * b + 1)) 9 3
    write 10 $((14 * b)) "$b" 3
    write 11 $((3 * b)) "$b" 4
    write 11 $((15 * b - 8)) 16 4
    snap 20 11
    write 11 8 8 5
    discard 0 $((2 * b)) $((2 * b))
    discard 0 $((7 * b + 16)) 16
    discard 1 0 "$b"
    discard 10 0 $((b * 3))
    run dmsetup remove t2
    message delete 2
    for i in 30 31 32 33; do snap $i 0; done
    write 0 $((6 * b)) 24 6
    message set_transaction_id 0 7
    message create_snap 34 33
    message set_transaction_id 7 8
    end 0: 1: 10: 11: 20:32768 30:32768 31:32768 32:32768 33:32768 34:32768
}

begin basic-64k 2048 32 128; basic
begin basic-1m 2048 48 2048; basic

# Snapshots that share ever more; discards are not passed on, and blocks are not zeroed before they are written.
begin plain-64k 2048 16 128 "3 skip_block_zeroing no_discard_passdown error_if_no_space"
message create_thin 7
thin 7 16384
write 7 0 4096 1
for i in 1 2 3 4 5; do
    snap $((100 + i)) 7
    write 7 $((128 * i)) $((128 * 3)) $((i + 1))
done
discard 7 0 1024
write 7 256 8 9
end 7: 101:16384 102:16384 103:16384 104:16384 105:16384

# A volume over a device that is not part of the pool and ends within a block.
begin external-64k 2048 16 128
ORIGIN=$(image origin 8)
dmsetup create ext --table "0 10280 linear $ORIGIN 0"
put /dev/mapper/ext 9 0 10280 1
message create_thin 0
thin 0 16384 /dev/mapper/ext
write 0 136 8 2
write 0 256 128 2
write 0 10240 8 2
write 0 10240 128 3
write 0 12800 16 2
write 0 512 8 2
discard 0 512 128
snap 1 0
thin 1 16384 /dev/mapper/ext
write 1 1024 16 4
say "origin 10280 $(digest /dev/mapper/ext)"
say "volume 0 16384 $(digest /dev/mapper/t0)"
say "volume 1 16384 $(digest /dev/mapper/t1)"
dmsetup table | grep '^t' | sed 's/^\(t[0-9]*\): /table \1 /' >> "$TXT"
dmsetup status | grep '^t' | sed 's/^\(t[0-9]*\): /status \1 /' >> "$TXT"
dmsetup remove t0
dmsetup remove t1
dmsetup remove ext
end

# A metadata snapshot that is still held, with changes after it.
begin held-64k 2048 16 128
message create_thin 0
thin 0 16384
write 0 0 4096 1
snap 1 0
message reserve_metadata_snap
write 0 0 1024 2
message create_snap 2 1
message create_thin 3
message reserve_metadata_snap
message set_transaction_id 0 1
end 0: 1:16384 2:16384 3:16384

# Data and metadata that were grown while the pool was in use.
begin grown-64k 1024 4 128
message create_thin 0
thin 0 32768
write 0 0 8192 1
grow data 32768
write 0 8192 8192 1
snap 1 0
grow meta 4096
write 0 128 2048 2
grow data 65536
grow meta 8192
message create_snap 2 1
write 0 20480 4096 3
end 0: 1:32768 2:32768

# No data block left: new blocks fail at once, what is there can be written, and a snapshot be made.
begin full-64k 2048 4 128 "1 error_if_no_space"
message create_thin 0
thin 0 32768
write 0 0 8192 1
write 0 8192 8 2
write 0 0 256 3
message create_snap 1 0
run dmsetup suspend t0
message create_snap 1 0
run dmsetup resume t0
write 0 128 8 4
end 0: 1:32768

# Metadata used up: the kernel asks for a check.
begin needs-check-64k 128 64 128 "1 skip_block_zeroing"
message create_thin 0
thin 0 131072
write 0 0 8 1
for ((i = 1; i < 60; i++)); do
    snap "$i" 0
    put /dev/mapper/t0 0 $((i * 2048 % 131072)) 8 "$i" 2> /dev/null || break
done
say "# until the metadata was used up: $i snapshots"
write 0 130000 8 77
message create_thin 99
say "status pool $(dmsetup status pool)"
end 0: 1:131072

# Mappings enough for a tree of three levels; only its metadata is kept.
begin deep-64k 16384 4096 128 "1 skip_block_zeroing"
message create_thin 0
message create_thin 5
thin 0 8388608
thin 5 8388608
run fio --name=job --filename=/dev/mapper/t0 --rw=write --bs=4k --zonemode=strided --zonesize=4k --zonerange=64k \
    --size=2500M --io_size=160M --direct=1 --ioengine=psync --buffer_pattern=0x75646d --output=/dev/null
run fio --name=job --filename=/dev/mapper/t5 --rw=randwrite --bs=4k --blockalign=64k --size=4G --io_size=16M \
    --randseed=1 --direct=1 --ioengine=psync --buffer_pattern=0x75646d --output=/dev/null
snap 6 5
discard 5 2048000 1024000
message set_transaction_id 0 1
KEEP_DATA=0 end
exit $FAILED
