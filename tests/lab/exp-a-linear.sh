#!/bin/bash
# GUEST: what the kernel's linear and striped cost over a RAM disk: direct reads, one at a time in
# each job, raw device and mapped devices taking turns.
#
#   run-guest.sh exp-a-linear.sh [SECONDS [ROUNDS]]
. ./guest-lib.sh
SECS=${1:-3} ROUNDS=${2:-5}
ramdisk 2 512 || exit 1
dmsetup create lin --table "0 1048576 linear /dev/ram0 0" || exit 1
dmsetup create str --table "0 2097152 striped 2 256 /dev/ram0 0 /dev/ram1 0" || exit 1

echo "kernel $(uname -r), ${ROUNDS} rounds of ${SECS} s, ratio of read IOPS to raw brd"
for spec in "512 12 read" "512 12 randread" "512 1 read" "4k 12 randread"; do
    read -r bs jobs rw <<< "$spec"
    for ((round = 1; round <= ROUNDS; round++)); do
        for device in ram0 lin str; do
            path=/dev/$device
            [ $device = ram0 ] || path=/dev/mapper/$device
            echo "$bs $jobs $rw $device $(read_iops $path --ioengine=psync --direct=1 --time_based \
                --runtime="$SECS" --rw="$rw" --bs="$bs" --numjobs="$jobs")"
        done
    done
done | awk '
    function sort(a, n,  i, j, t) {
        for (i = 2; i <= n; i++) for (j = i; j > 1 && a[j - 1] > a[j]; j--) { t = a[j]; a[j] = a[j - 1]; a[j - 1] = t }
    }
    function cell(key,  i, n, a) {
        n = count[key]
        for (i = 1; i <= n; i++) a[i] = ratio[key, i]
        sort(a, n)
        return sprintf("%.3f (%.3f-%.3f)", a[int((n + 1) / 2)], a[1], a[n])
    }
    $4 == "ram0" { base = $5; next }
    {
        row = $1 " " $2 " " $3
        if (!(row in seen)) { seen[row] = 1; rows[++last] = row }
        key = row " " $4
        ratio[key, ++count[key]] = base ? $5 / base : 0
    }
    END {
        printf "%-6s %-5s %-9s %-22s %s\n", "bs", "jobs", "rw", "linear median (range)", "striped median (range)"
        for (i = 1; i <= last; i++) {
            split(rows[i], f, " ")
            printf "%-6s %-5s %-9s %-22s %s\n", f[1], f[2], f[3], cell(rows[i] " lin"), cell(rows[i] " str")
        }
    }'
