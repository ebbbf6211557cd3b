#!/usr/bin/env bash
# A stack of devices in user space: striped over ram and loop, served over NBD, written and read
# back by a program that is not ours where one is installed. Leaves nothing behind.
set -euo pipefail
cd "$(dirname "$0")/.."
udm=${UDM:-target/release/udm}
if [ ! -x "$udm" ]; then
    echo "demo.sh: there is no $udm; \`make demo\` builds it" >&2
    exit 1
fi

dir=$(mktemp -d "${TMPDIR:-/tmp}/udm-demo.XXXXXX")
export UDM_DIR=$dir/run
finish() {
    "$udm" daemon --stop >/dev/null 2>&1 || true
    rm -rf "$dir"
}
trap finish EXIT

# Shows a command as one would type it, and runs it.
say() { printf '\n# %s\n' "$*"; }
run() {
    local word line
    line="\$ $(basename "$1")"
    for word in "${@:2}"; do
        case $word in *[!A-Za-z0-9_./:=,+-]*) word="\"$word\"" ;; esac
        line+=" ${word//$dir/\$DIR}"
    done
    echo "$line"
    "$@"
}

echo "DIR=$dir"
say "Half of the disk is memory, half is a file; 64 MiB each (131072 sectors of 512 bytes)."
run truncate -s 64M "$dir/half.img"
run "$udm" create fast --table "0 131072 ram"
run "$udm" create slow --table "0 131072 loop $dir/half.img"
say "One device over both, 64 KiB (128 sectors) on each in turn."
run "$udm" create disk --table "0 262144 striped 2 128 /dev/mapper/fast 0 /dev/mapper/slow 0"
run "$udm" table
run "$udm" info disk

uri="nbd+unix:///disk?socket=$UDM_DIR/nbd.sock"
if command -v nbdinfo >/dev/null; then
    say "Every device is an NBD export by its name."
    run nbdinfo --size "$uri"
fi

if command -v nbdcopy >/dev/null; then
    client=nbdcopy
    copy_in() { run nbdcopy "$1" "$uri"; }
    copy_out() { run nbdcopy "$uri" "$1"; }
elif command -v qemu-img >/dev/null; then
    client=qemu-img
    copy_in() { run qemu-img convert -n -f raw -O raw "$1" "$uri"; }
    copy_out() { run qemu-img convert -f raw -O raw "$uri" "$1"; }
else
    client=
fi

if [ -n "$client" ]; then
    say "Write 128 MiB of random bytes with $client, read them back, compare."
    run dd if=/dev/urandom of="$dir/in.img" bs=1M count=128 status=none
    copy_in "$dir/in.img"
    copy_out "$dir/out.img"
    run cmp "$dir/in.img" "$dir/out.img"
    echo "same bytes"
    say "Every other 64 KiB went to the file: its first are those at 64 KiB of the disk."
    run cmp -n 65536 "$dir/half.img" "$dir/in.img" 0 65536
    echo "same bytes"
else
    say "Neither nbdcopy nor qemu-img is installed; udm's own client writes and verifies."
    run "$udm" bench --device disk --rw=randrw --bs=4k --iodepth=8 --runtime=3 --verify
fi

say "What the devices did: 'remapped' is bios passed down without a copy."
run "$udm" info --json disk
run "$udm" remove disk slow fast

cat <<E2

That was a daemon, three mapped devices and an NBD client, without root and without a kernel module.
Where to go on:
  docs/src/getting-started.md   the same by hand
  docs/src/targets/             every target: table line, status, errors
  docs/src/commands/            every command; they are dmsetup's
  $udm help
E2
