#!/usr/bin/env bash
# A stack of devices in user space: striped over memory and a file, served over NBD, written and read
# back by a program that is not ours where one is installed. Leaves nothing behind.
# shellcheck disable=SC2016 # Commands are shown as one types them, unexpanded.
set -euo pipefail
cd "$(dirname "$0")/.."
program=$(realpath "${UDM:-target/release/udm}")
if [ ! -x "$program" ]; then
    echo "demo.sh: there is no $program; \`make demo\` builds it" >&2
    exit 1
fi

DIR=$(mktemp -d "${TMPDIR:-/tmp}/udm-demo.XXXXXX")
export UDM_DIR=$DIR/run
udm() { "$program" "$@"; }
finish() {
    udm daemon --stop >/dev/null 2>&1 || true
    rm -rf "$DIR"
}
trap finish EXIT

say() { echo; printf "# %s\n" "$@"; }
# Shows a command as one would type it, and runs it.
show() {
    printf '$ %s\n' "$1"
    eval "$1"
}

say 'Everything is in one directory, the daemon'\''s own one too. The first command starts the daemon.'
echo "\$ DIR=$DIR"
echo '$ export UDM_DIR=$DIR/run'

say 'Half of the disk is memory, half is a file: 131072 sectors of 512 bytes, 64 MiB, each.'
show 'truncate -s 64M $DIR/half.img'
show 'udm create fast --table "0 131072 ram"'
show 'udm create slow --table "0 131072 loop $DIR/half.img"'
say 'One device over both, with 128 sectors (64 KiB) on each in turn.'
show 'udm create disk --table "0 262144 striped 2 128 /dev/mapper/fast 0 /dev/mapper/slow 0"'
show 'udm ls --tree'

say 'Every device is an NBD export by its name: programs that know nothing of udm can use it.'
show 'URI="nbd+unix:///disk?socket=$UDM_DIR/nbd.sock"'
if command -v nbdcopy >/dev/null; then
    copy_in='nbdcopy $DIR/in.img $URI'
    copy_out='nbdcopy $URI $DIR/out.img'
elif command -v qemu-img >/dev/null; then
    copy_in='qemu-img convert -n -f raw -O raw $DIR/in.img $URI'
    copy_out='qemu-img convert -f raw -O raw $URI $DIR/out.img'
else
    copy_in=
fi
if [ -n "$copy_in" ]; then
    say 'Random bytes in, and out again.'
    show 'head -c 128M /dev/urandom >$DIR/in.img'
    show "$copy_in"
    show "$copy_out"
    show 'cmp $DIR/in.img $DIR/out.img && echo same bytes'
    say 'What stands at 64 KiB of the disk is at the start of the file.'
    show 'cmp -n 65536 $DIR/half.img $DIR/in.img 0 65536 && echo same bytes'
else
    say 'Neither nbdcopy nor qemu-img is installed, so udm'\''s own client writes, reads and verifies.'
    show 'udm bench --device disk --rw=randrw --bs=64k --iodepth=8 --runtime=2 --verify=crc32c'
fi

say 'Grow it without taking it down: load a second table, then make it the live one.'
show 'udm create more --table "0 65536 ram"'
show 'udm table disk >$DIR/table'
show 'echo "262144 65536 linear /dev/mapper/more 0" >>$DIR/table'
show 'udm load disk $DIR/table && udm resume disk'
show 'udm table disk'
if [ -n "$copy_in" ]; then
    if command -v nbdinfo >/dev/null; then
        show 'nbdinfo --size $URI'
    fi
    show "$copy_out"
    show 'cmp -n 128M $DIR/in.img $DIR/out.img && echo same bytes'
fi

say 'Small requests pass through the stack without a copy ("remapped"); one that crosses' \
    'from one stripe to the next is split ("cloned").'
show 'udm bench --device disk --rw=randread --bs=4k --iodepth=16 --runtime=1 2>/dev/null'
show 'udm info --json disk | grep -oE "\"(reads|writes|remapped|cloned)\":[0-9]+"'

say 'What is in use stays; the rest goes.'
show 'udm remove fast' 2>&1 || true
show 'udm remove disk more slow fast'
show 'udm ls'

cat <<E2

That was a daemon, four mapped devices and an NBD client, without a kernel module, and root is not needed.
Where to go on:
  docs/src/getting-started.md   the same by hand
  docs/src/targets/             every target: table line, status, errors
  docs/src/commands/            every command; they are dmsetup's
  target/release/udm help
E2
