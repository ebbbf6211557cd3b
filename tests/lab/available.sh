#!/bin/bash
# Run COMMAND only where the lab can be had; elsewhere say why not, and succeed.
#
#   available.sh [COMMAND [ARG...]]
#
# The guest is built on first use, and when the scripts that make it have changed. The lab needs x86-64,
# an emulator, the guest's programs, and either a kernel that was unpacked before or a Debian package source
# to get one from. With INSTALL=1 and root, missing packages are installed.
set -uo pipefail
. "$(dirname "$0")/lib.sh"

skip() { echo "SKIP reference lab: $*"; exit 0; }

[ "$(uname -sm)" = "Linux x86_64" ] || skip "needs Linux on x86-64, this is $(uname -sm)"
if [ ! -e "$KERNEL_IMAGE" ] || ! recipe | cmp -s - "$BUILT" || ! command -v qemu-system-x86_64 > /dev/null; then
    if [ "${INSTALL:-0}" = 1 ]; then
        [ "$(id -u)" = 0 ] || skip "INSTALL=1 needs root"
        command -v apt-get >/dev/null || skip "INSTALL=1 needs apt-get"
    fi
    mkdir -p "$LAB" 2>/dev/null || skip "cannot create $LAB"
    "$HERE/build-guest.sh" > "$LAB/build.log" 2>&1 ||
        skip "the guest cannot be built: $(tail -n 1 "$LAB/build.log") (all of it: $LAB/build.log)"
fi
command -v qemu-system-x86_64 >/dev/null || skip "qemu-system-x86_64 is not installed"

[ $# -eq 0 ] || exec "$@"
