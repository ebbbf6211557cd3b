#!/usr/bin/env bash
# A file system under load on a loop node over log-writes; then, after each flush of its log, what a power cut would have
# left is checked: ext4 with e2fsck after the replay of its journal, XFS by a mount, which is its recovery, and
# xfs_repair -n.
#
#   log-writes-fs.sh ext4|xfs [ROUNDS] [every]
#
# Needs root, loop devices and FUSE. UDM is the program (target/release/udm). "every" also checks after each entry, where
# ext4 must be clean as well, as the order of its writes is the journal's.
set -euo pipefail
cd "$(dirname "$0")/.."
program=$(realpath "${UDM:-target/release/udm}")
kind=${1:?ext4 or xfs} rounds=${2:-20} each=flush
[ "${3:-}" = every ] && each=1

[ "$(id -u)" = 0 ] || { echo "SKIP only root can mount what is on a device"; exit 0; }
for needed in "mkfs.$kind" e2fsck cmp; do
    command -v "$needed" > /dev/null || { echo "SKIP $needed is not installed"; exit 0; }
done
grep -qw "$kind" /proc/filesystems || modprobe "$kind" 2> /dev/null || { echo "SKIP the kernel has no $kind"; exit 0; }
DIR=$(mktemp -d "${TMPDIR:-/tmp}/udm-log.XXXXXX")
export UDM_DIR=$DIR/run PROGRAM=$program DIR
udm() { timeout 60 "$program" "$@"; }
finish() {
    umount -l "$DIR/mnt" 2> /dev/null || true
    umount -l "$DIR/check" 2> /dev/null || true
    udm daemon --stop --forget > /dev/null 2>&1 || true
    rm -rf "$DIR"
}
trap finish EXIT
mkdir "$DIR/mnt" "$DIR/check"
size=$((128 << 20))
[ "$kind" = xfs ] && size=$((320 << 20))
truncate -s "$size" "$DIR/disk" "$DIR/replay"
truncate -s 4G "$DIR/log"

why=$(udm create fs --node=loop --table "0 $((size / 512)) log-writes $DIR/disk $DIR/log" 2>&1) ||
    { echo "SKIP $why"; exit 0; }
node=$(udm node | awk -F '\t' '$1 == "fs" { print $4 }')
case $kind in
    ext4) mkfs.ext4 -q -F "$node" ;;
    xfs) mkfs.xfs -q -f "$node" ;;
esac
udm message fs 0 mark made
mount -t "$kind" "$node" "$DIR/mnt"

# What file systems find hard: names that come and go, files that grow, are cut off and made durable.
load() {
    local me=$1 n
    mkdir -p "$DIR/mnt/$me"
    cd "$DIR/mnt/$me"
    for ((n = 0; n < rounds; n++)); do
        mkdir -p "d$((n % 7))"
        head -c $((RANDOM * 7)) /dev/urandom > "d$((n % 7))/new"
        [ $((n % 3)) = 0 ] && sync "d$((n % 7))/new"
        mv "d$((n % 7))/new" "f$((n % 11))"
        truncate -s $((RANDOM * 3)) "f$((n % 5))"
        ln -f "f$((n % 11))" "d$((n % 7))/link" 2> /dev/null || true
        [ $((n % 4)) = 3 ] && rm -rf "d$(((n + 3) % 7))"
        [ $((n % 5)) = 4 ] && sync -f .
    done
    cd "$DIR"
}
load one &
load two &
wait
umount "$DIR/mnt"
udm remove fs
cmp -s "$DIR/disk" <(udm log-writes replay "$DIR/log" "$DIR/replay" > "$DIR/said"; cat "$DIR/replay") ||
    { echo "the whole log does not make what is on the device" >&2; exit 1; }
cat "$DIR/said"
rm "$DIR/replay"
truncate -s "$size" "$DIR/replay"

cat > "$DIR/check.sh" <<'CHECK'
set -u
cp --sparse=always "$UDM_DEVICE" "$DIR/copy"
case $1 in
    ext4)
        e2fsck -E journal_only -y "$DIR/copy" > "$DIR/fsck" 2>&1
        e2fsck -fn "$DIR/copy" >> "$DIR/fsck" 2>&1 || { cat "$DIR/fsck"; exit 1; }
        ;;
    xfs)
        mount -t xfs -o loop,nouuid "$DIR/copy" "$DIR/check" || exit 1
        umount "$DIR/check" || exit 1
        xfs_repair -n "$DIR/copy" > "$DIR/fsck" 2>&1 || { cat "$DIR/fsck"; exit 1; }
        ;;
esac
CHECK
udm log-writes replay "$DIR/log" "$DIR/replay" --end-mark made > /dev/null
timeout 1800 "$program" log-writes replay "$DIR/log" "$DIR/replay" --start-mark made --each "$each" \
    --check "bash $DIR/check.sh $kind"
