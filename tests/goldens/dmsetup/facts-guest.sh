#!/bin/bash
# GUEST: facts of the reference kernel that udm imitates or has to keep clear of.
set -u
echo "# Facts of the reference kernel; written by record.sh."
echo "kernel   $(uname -r)"
echo "dmsetup  $(dmsetup version | sed -n 's/^Library version: *//p')"
echo "driver   $(dmsetup version | sed -n 's/^Driver version: *//p')"
echo
echo "# Versions of all its targets, with every dm module loaded: name, version, module."
rmmod dm-zero dm-thin-pool dm-snapshot 2> /dev/null
for module in $(find "/lib/modules/$(uname -r)/kernel/drivers/md" -name 'dm-*.ko*' |
    sed 's|.*/||; s|\.ko.*||' | sort); do
    before=$(dmsetup targets | awk '{ print $1 }' | sort)
    modprobe "$module" 2> /dev/null || { echo "# $module does not load"; continue; }
    for target in $(dmsetup targets | awk '{ print $1 }'); do
        grep -qx "$target" <<< "$before" || echo "$target $module" >> /tmp/modules
    done
done
dmsetup targets | sort | while read -r name version; do
    module=$(awk -v name="$name" '$1 == name { print $2 }' /tmp/modules)
    echo "$name ${version#v} ${module:-dm-mod}"
done | awk '{ printf "%-18s %-10s %s\n", $1, $2, $3 }'
echo
echo "# Block majors in /proc/devices with brd, loop, nbd, null_blk, virtio_blk, md and device-mapper loaded."
modprobe nbd 2> /dev/null
modprobe brd 2> /dev/null
sed -n '/^Block/,$p' /proc/devices | sed '1d'
echo
echo "# Majors a block driver can have: device-mapper loaded with the parameter major=N. From 512 on none."
for _ in 1 2 3 4 5 6; do
    for module in $(lsmod | awk '$1 ~ /^(dm_|md_|raid)/ { print $1 }'); do rmmod "$module" 2> /dev/null; done
done
for major in 240 511 512 600 999; do
    if modprobe dm-mod major=$major 2> /dev/null; then
        echo "$major accepted: $(grep -w device-mapper /proc/devices)"
        rmmod dm-mod
    else
        echo "$major refused: $(dmesg | sed -n 's/^\[[ 0-9.]*\] //; /major requested/p' | tail -n 1)"
    fi
done
