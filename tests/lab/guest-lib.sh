# shellcheck shell=bash
# Helpers for scripts that run inside the guest:  . ./guest-lib.sh

# ramdisk COUNT MIB [nofill]: /dev/ram0 and on. Filled unless told otherwise, because brd has no
# page for what was never written, and reading such a sector would touch no memory.
ramdisk() {
    local i
    rmmod brd 2>/dev/null
    modprobe brd rd_nr="$1" rd_size=$(($2 * 1024)) || return 1
    [ "${3:-fill}" = nofill ] && return
    for ((i = 0; i < $1; i++)); do
        dd if=/dev/zero of=/dev/ram$i bs=1M count="$2" status=none
    done
}

# read_iops DEVICE FIO-ARG...: reads a second, as fio counts them; 0 when fio reports an error.
# Field 5 of terse format 3 is the error, field 8 the read IOPS.
read_iops() {
    local device=$1
    shift
    fio --name=job --filename="$device" --minimal --terse-version=3 --norandommap \
        --group_reporting "$@" | awk -F ';' '/^3;/ { print ($5 ? 0 : $8) }'
}

# null_block NAME MIB [KEY=VALUE...]: one null_blk device /dev/NAME, set up through configfs.
null_block() {
    local size=$2 directory=/sys/kernel/config/nullb/$1 setting
    shift 2
    modprobe null_blk nr_devices=0 || return 1
    mkdir "$directory" || return 1
    echo "$size" > "$directory/size"
    for setting; do echo "${setting#*=}" > "$directory/${setting%%=*}" || return 1; done
    echo 1 > "$directory/power"
}

# image NAME MIB: a block device over a sparse file in memory; prints its path. The file is /tmp/NAME.img.
image() {
    rm -f "/tmp/$1.img"
    truncate -s "$2M" "/tmp/$1.img" || return 1
    losetup -f --show "/tmp/$1.img"
}

# pattern VOLUME SECTOR COUNT GENERATION: what tests write. Sector s of a volume belongs to page s / 8, and a page is
# one line of 32 bytes over and over, with the numbers in hexadecimal:  "udm v0001 p00000002 g00000003  \n".
# So it is known what a sector must hold, whoever wrote it, and an image of it compresses to almost nothing.
pattern() {
    mawk -v v="$1" -v s="$2" -v n="$3" -v g="$4" 'BEGIN {
        for (i = 0; i < n; i++) {
            line = sprintf("udm v%04x p%08x g%08x  \n", v, int((s + i) / 8), g)
            line = line line line line
            line = line line line line
            printf "%s", line
        }
    }'
}

# put DEVICE VOLUME SECTOR COUNT GENERATION: writes the pattern with direct I/O, 64 KiB at a time from the first whole
# 64 KiB on; the order of the writes is the order on the device.
put() {
    local device=$1 volume=$2 sector=$3 left=$4 generation=$5 part
    while ((left)); do
        part=$((128 - sector % 128))
        if ((part == 128 && left >= 128)); then part=$((left / 128 * 128)); fi
        if ((part > left)); then part=$left; fi
        pattern "$volume" "$sector" "$part" "$generation" |
            if ((part % 128)); then
                dd of="$device" bs=$((part * 512)) seek=$((sector * 512)) oflag=direct,seek_bytes iflag=fullblock \
                    conv=notrunc status=none
            else
                dd of="$device" bs=64K seek=$((sector / 128)) oflag=direct iflag=fullblock conv=notrunc status=none
            fi || return 1
        sector=$((sector + part)) left=$((left - part))
    done
}

# digest DEVICE: the SHA-256 of all of it, read past the page cache.
digest() { dd if="$1" bs=1M iflag=direct status=none | sha256sum | cut -d ' ' -f 1; }
