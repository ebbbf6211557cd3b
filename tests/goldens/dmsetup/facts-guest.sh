#!/bin/bash
# GUEST: facts of the reference kernel that udm imitates or has to keep clear of.
set -u
echo "# Facts of the reference kernel; written by record.sh."
echo "kernel   $(uname -r)"
dmsetup version | sed 's/: */ = /; s/^/dmsetup  /'
echo
echo "# Versions of all its targets, with every dm module loaded: name, version, module."
for path in $(find "/lib/modules/$(uname -r)/kernel/drivers/md" -name 'dm-*.ko*' | sort); do
    module=$(basename "$path" | sed 's/\.ko.*//')
    before=$(dmsetup targets | awk '{ print $1 }' | sort)
    modprobe "$module" 2> /dev/null || { echo "# $module does not load"; continue; }
    for target in $(dmsetup targets | awk '{ print $1 }'); do
        grep -qx "$target" <<< "$before" || echo "$target $module" >> /tmp/modules
    done
done
dmsetup targets | sort | while read -r name version; do
    printf '%-18s %-10s %s\n' "$name" "${version#v}" \
        "$(awk -v n="$name" '$1 == n { print $2 }' /tmp/modules | head -n 1)"
done
echo
echo "# Block majors in /proc/devices with brd, loop, nbd, null_blk, virtio_blk, md and device-mapper loaded."
modprobe nbd 2> /dev/null
modprobe brd 2> /dev/null
sed -n '/^Block/,$p' /proc/devices | sed '1d'
echo
echo "# Majors a block driver can have: device-mapper loaded with the parameter major=N. From 512 on none."
for round in 1 2 3 4 5 6; do
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
