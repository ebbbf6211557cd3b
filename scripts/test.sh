#!/usr/bin/env bash
# Installs what the tests need where that is allowed, says what is missing where it is not, and
# runs everything. Ends with the line `N passed, N failed, N skipped`.
set -euo pipefail
cd "$(dirname "$0")/.."

# command:package, of Debian 12. A test whose program is missing prints SKIP and passes.
needs=(
    fio:fio
    nbdinfo:libnbd-bin
    nbdcopy:libnbd-bin
    nbdsh:python3-libnbd
    nbdkit:nbdkit
    qemu-img:qemu-utils
    qemu-nbd:qemu-utils
    mkfs.ext4:e2fsprogs
    valgrind:valgrind
    thin_check:thin-provisioning-tools
    dmsetup:dmsetup
)
PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin
export PATH

# The packages of the commands that are not there, each once.
missing() {
    local need
    for need in "${needs[@]}"; do
        command -v "${need%%:*}" >/dev/null || echo "${need#*:}"
    done | sort -u
}

# How to become root without being asked for a password; fails where that cannot be.
as_root() {
    if [ "$(id -u)" = 0 ]; then
        "$@"
    else
        sudo -n "$@"
    fi
}

# apt-get, patient with another one that holds the lock, and silent unless it fails.
apt() {
    local log
    log=$(mktemp)
    if ! as_root env DEBIAN_FRONTEND=noninteractive apt-get -q -y -o DPkg::Lock::Timeout=120 "$@" >"$log" 2>&1 </dev/null
    then
        tail -n 3 "$log" >&2
        rm -f "$log"
        return 1
    fi
    rm -f "$log"
}

install_packages() {
    local package
    mapfile -t packages < <(missing)
    [ "${#packages[@]}" -gt 0 ] || return 0
    if ! command -v apt-get >/dev/null; then
        echo "test.sh: no apt-get here; install by hand: ${packages[*]}"
        return 0
    fi
    if ! as_root true 2>/dev/null; then
        echo "test.sh: neither root nor sudo without a password; install by hand: ${packages[*]}"
        return 0
    fi
    echo "test.sh: installing ${packages[*]}"
    apt update || echo "test.sh: apt-get update failed; trying with the lists that are here"
    apt install --no-install-recommends "${packages[@]}" && return 0
    # One that cannot be had must not keep the others away.
    for package in "${packages[@]}"; do
        apt install --no-install-recommends "$package" || echo "test.sh: could not install $package"
    done
}

install_components() {
    command -v rustup >/dev/null || return 0
    cargo fmt --version >/dev/null 2>&1 && cargo clippy --version >/dev/null 2>&1 && return 0
    # Where there is no network this fails, and the steps that need them print SKIP.
    timeout 120 rustup component add rustfmt clippy >/dev/null 2>&1 </dev/null || true
}

install_packages
install_components
mapfile -t packages < <(missing)
for package in "${packages[@]}"; do
    echo "SKIP tests of what $package brings: it is not installed"
done
exec cargo xtask ci
