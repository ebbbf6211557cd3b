#!/bin/bash
# Boot the guest, run SCRIPT in it as root under bash, power off. The exit status is the script's.
#
#   run-guest.sh [options] SCRIPT [ARG...]
#     -o DIR     the script's working directory in the guest (default: a new one under $UDM_LAB/run);
#                what the script writes there stays, with its output in "out", the kernel's log in "dmesg"
#     -f FILE    copy a file or directory into that directory (may be repeated)
#     -d SIZE    add a virtio disk (8G ...): /dev/vda, vdb ...
#     -d FILE    the same from an image, which the guest may write to; a path with a slash in it
#     -v SOCKET  add a virtio disk that a vhost-user-blk server has on that socket; the guest waits for it when it goes
#     -n SIZE    add an emulated NVMe disk: /dev/nvme0n1 ...
#     -r         show this machine's / read-only at /host, to run its programs by chroot /host
#     -t SEC     time limit (default 900)
#   Environment: UDM_LAB, KERNEL, ACCEL (tcg or kvm; default tcg), SMP (default nproc), MEM (default 2G),
#   TURNS=1 (emulated CPUs take turns on one of ours: see below)
#
# Emulation is the default because a nested KVM may open and then not start an ordinary kernel.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
usage() { sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "$0" >&2; exit 2; }

ACCEL=${ACCEL:-tcg} SMP=${SMP:-$(nproc)} MEM=${MEM:-2G} LIMIT=900 JOB= HOST=0
FILES=() DISKS=() NVMES=() SOCKETS=()
while getopts o:f:d:n:v:rt: option; do
    case $option in
        o) JOB=$OPTARG ;;
        f) FILES+=("$OPTARG") ;;
        d) DISKS+=("$OPTARG") ;;
        n) NVMES+=("$OPTARG") ;;
        v) SOCKETS+=("$OPTARG") ;;
        r) HOST=1 ;;
        t) LIMIT=$OPTARG ;;
        *) usage ;;
    esac
done
shift $((OPTIND - 1))
[ $# -ge 1 ] || usage
SCRIPT=$1
shift
[ -e "$KERNEL_IMAGE" ] && [ -e "$INITRD" ] || die "no guest in $LAB; run build-guest.sh first"

mkdir -p "$LAB/run"
TEMP=$(mktemp -d "$LAB/run/$(basename "$SCRIPT" .sh).XXXXXX")
[ -n "$JOB" ] || JOB=$TEMP/job
mkdir -p "$JOB"
rm -f "$JOB"/{rc,out,dmesg}
cp "$SCRIPT" "$JOB/run"
cp "$HERE/guest-lib.sh" "$JOB/"
echo "$*" > "$JOB/args"
# The guest has a /tmp of its own, in which it is to see the project.
case $HERE in /tmp/*) keep=${HERE#/tmp/}; echo "${keep%%/*}" > "$JOB/keep" ;; esac
for file in "${FILES[@]}"; do cp -r "$file" "$JOB/"; done

# A kernel patches its own text while other CPUs run it, which goes wrong now and then where each emulated CPU has a
# thread of its own: the guest panics. Where they take turns it cannot; they are slower then, and measure nothing.
THREADS=multi
[ "${TURNS:-0}" = 0 ] || THREADS=single
case $ACCEL in
    kvm) CPU=(-accel kvm -cpu host) ;;
    tcg) CPU=(-accel "tcg,thread=$THREADS,tb-size=512" -cpu max) ;;
    *) die "ACCEL=$ACCEL: expected kvm or tcg" ;;
esac
QEMU=(qemu-system-x86_64 "${CPU[@]}" -machine q35 -smp "$SMP" -m "$MEM"
    -nodefaults -no-reboot -display none -monitor none -serial "file:$TEMP/console"
    -kernel "$KERNEL_IMAGE" -initrd "$INITRD"
    -append "console=ttyS0 panic=-1 quiet mitigations=off no_timer_check tsc=reliable"
    -virtfs "local,path=$JOB,mount_tag=share,security_model=none,multidevs=remap"
    -device virtio-rng-pci)
[ $HOST = 0 ] ||
    QEMU+=(-virtfs "local,path=/,mount_tag=host,security_model=none,readonly=on,multidevs=remap")
add_disk() { # NAME SIZE-OR-FILE DEVICE
    local path=$TEMP/$1.raw
    case $2 in
        */*) path=$2 ;;
        *) truncate -s "$2" "$path" ;;
    esac
    QEMU+=(-drive "if=none,id=$1,file=$path,format=raw,cache=none,aio=threads,discard=unmap"
        -device "$3,drive=$1,serial=$1")
}
for i in "${!DISKS[@]}"; do add_disk "disk$i" "${DISKS[$i]}" virtio-blk-pci; done
for i in "${!NVMES[@]}"; do add_disk "nvme$i" "${NVMES[$i]}" nvme; done

# A server sees the guest's memory, so that has to be shared.
[ ${#SOCKETS[@]} = 0 ] || QEMU+=(-object "memory-backend-memfd,id=memory,size=$MEM,share=on" -machine memory-backend=memory)
for i in "${!SOCKETS[@]}"; do
    QEMU+=(-chardev "socket,id=vhost$i,path=${SOCKETS[$i]},reconnect=1"
        -device "vhost-user-blk-pci,chardev=vhost$i,num-queues=2")
done

PID=
trap '[ -z "$PID" ] || kill "$PID" 2>/dev/null || true; rm -f "$TEMP"/*.raw' EXIT
boot() {
    : > "$TEMP/console"
    timeout -k 5 "$LIMIT" "${QEMU[@]}" < /dev/null 2> "$TEMP/qemu.err" &
    PID=$!
    # The firmware's chatter comes before the guest's first line.
    tail -n +1 -f "$TEMP/console" --pid=$PID | sed -u -n 's/\r$//; /LAB: up/,/reboot: Power down/p' &
    STATUS=0
    wait $PID || STATUS=$?
    wait || true
}
# One that panics before the script begins has done nothing, and is booted again.
for attempt in 1 2 3; do
    boot
    if grep -q 'LAB: up' "$TEMP/console" || ! grep -q 'Kernel panic' "$TEMP/console"; then break; fi
    [ $attempt = 3 ] || note "the guest panicked while booting; once more"
done
[ $STATUS != 124 ] || echo "time limit of $LIMIT s reached" >&2
[ ! -s "$TEMP/qemu.err" ] || sed 's/^/qemu: /' "$TEMP/qemu.err" >&2
[ -s "$JOB/rc" ] || {
    echo "no result from the guest; the end of its console ($TEMP/console):" >&2
    tail -n 15 "$TEMP/console" >&2
    exit $((STATUS ? STATUS : 1))
}
note "results in $JOB"
exit "$(cat "$JOB/rc")"
