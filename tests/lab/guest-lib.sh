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
