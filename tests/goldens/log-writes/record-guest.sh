# Runs in the guest of tests/lab: has the kernel's log-writes log a known list of writes, one at a time, and keeps the
# log device with what dmsetup said. Every step is in NAME.txt, as a line that begins with "+".
#
# A line "+ write SECTOR COUNT GENERATION" is the pattern of guest-lib.sh, of volume 1. "sync" after it: written with
# O_DSYNC, which the kernel sends as a FUA write and a flush; "flush" after it: fsync follows.
. ./guest-lib.sh

mkdir recorded
modprobe dm-log-writes || exit 1

# say WORD...: a line of the record.
say() { echo "$*" >> "recorded/$NAME.txt"; }

write() {
    local how=oflag=direct,seek_bytes after=
    say "+ write $*"
    case ${4:-} in
        sync) how=$how,dsync ;;
        flush) after=conv=notrunc,fsync ;;
    esac
    pattern 1 "$1" "$2" "$3" > p
    dd if=p of=/dev/mapper/l bs=$(($2 * 512)) seek=$(($1 * 512)) $how ${after:-conv=notrunc} status=none || exit 1
}

discard() {
    say "+ discard $*"
    blkdiscard -o $(($1 * 512)) -l $(($2 * 512)) /dev/mapper/l || exit 1
}

mark() {
    say "+ mark $*"
    dmsetup message l 0 mark "$*" || exit 1
    # The kernel's thread logs it in its own time.
    sleep 1
    say "status $(dmsetup status l | cut -d ' ' -f 4-)"
}

# begin NAME DEVICE LOG
begin() {
    NAME=$1 LOGDEV=$3
    dd if=/dev/zero of="$3" bs=1M count=1 status=none
    dmsetup create l --table "0 4096 log-writes $2 $3" || exit 1
    say "block $(cat /sys/block/"$(basename "$(readlink -f "$2")")"/queue/logical_block_size)"
}

end() {
    say "+ remove"
    dmsetup remove l || exit 1
    sync
    dd if="$LOGDEV" of="recorded/$NAME.log" bs=1M status=none
}

some() {
    write 0 8 1
    write 64 16 1 flush
    mark one
    write 8 8 2 sync
    write 1024 256 2
    discard 2048 64
    mark two
    write 0 8 3 flush
    write 4088 8 3
    write 4080 8 3
    mark "$(head -c 600 /dev/zero | tr '\0' x)"
    write 4088 8 4
}

ramdisk 2 2 nofill
begin ram-512 /dev/ram0 /dev/ram1
write 3 1 9
some
end

null_block n4k 2 blocksize=4096 memory_backed=1 discard=1 || exit 1
begin null-4k /dev/n4k /dev/ram1
some
end

# A log device of 20 sectors: it is full after the first write.
dd if=/dev/zero of=/tmp/small.img bs=512 count=20 status=none
losetup /dev/loop7 /tmp/small.img || exit 1
NAME=full LOGDEV=/dev/loop7
dmsetup create l --table "0 4096 log-writes /dev/ram0 /dev/loop7" || exit 1
say "block 512"
write 0 8 1 flush
mark one
write 0 8 2 flush
mark two
write 0 8 3 flush
end
dmesg | sed -n 's/.*device-mapper: log-writes: /said /p' >> recorded/full.txt

# What it refuses.
NAME=refusals
for table in "log-writes" "log-writes /dev/ram0" "log-writes /dev/none /dev/ram1" "log-writes /dev/ram0 /dev/none" \
    "log-writes /dev/ram0 /dev/ram1 more"; do
    dmesg -c > /dev/null
    say "+ create 0 4096 $table"
    if dmsetup create l --table "0 4096 $table" 2> /dev/null; then say ok; dmsetup remove l; else say failed; fi
    dmesg | sed -n 's/.*device-mapper: table: [^:]*: //p' | while read -r line; do say "said $line"; done
done
dmsetup create l --table "0 4096 log-writes /dev/ram0 /dev/ram1" || exit 1
say "table $(dmsetup table l)"
say "deps $(dmsetup deps -o devname l)"
for message in "mark" "mark a b" "merk a" "MARK a"; do
    dmesg -c > /dev/null
    say "+ message $message"
    # shellcheck disable=SC2086
    if dmsetup message l 0 $message 2> /dev/null; then say ok; else say failed; fi
    dmesg | sed -n 's/.*device-mapper: //p' | while read -r line; do say "said $line"; done
done
dmsetup remove l
cat /sys/module/dm_log_writes/version 2> /dev/null
dmsetup targets | grep log-writes | while read -r line; do say "$line"; done
