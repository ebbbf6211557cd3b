#!/usr/bin/env bash
# Installs what the tests need where that is allowed, and says what is missing where it is not.
#
#   scripts/needs.sh         what `make test` needs: half a minute on a machine that has nothing of it
#   scripts/needs.sh --all   also what takes minutes, and what would start a server: for continuous integration
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/apt-aside.sh
case ${1:-} in '' | --all) ALL=${1:-} ;; *) echo "needs.sh: $1: expected --all, or nothing" >&2; exit 2 ;; esac

# command:package, of Debian 12. A test whose program is missing prints SKIP and passes.
needs=(
    cc:gcc
    dmsetup:dmsetup
    fio:fio
    fusermount3:fuse3
    mkfs.ext4:e2fsprogs
    nbdcopy:libnbd-bin
    nbdinfo:libnbd-bin
    nbdkit:nbdkit
    nbdsh:python3-libnbd
    python3:python3
    qemu-img:qemu-utils
    qemu-nbd:qemu-utils
    qemu-storage-daemon:qemu-system-common
    thin_check:thin-provisioning-tools
    valgrind:valgrind
)
PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin
export PATH

# The packages of what is not there, each once.
missing() {
    local need
    for need in "${needs[@]}"; do
        command -v "${need%%:*}" >/dev/null || echo "${need#*:}"
    done | sort -u
    # The package starts a server, which is why only --all brings it; its programs are not on the path.
    [ -z "$ALL" ] || compgen -G '/usr/lib/postgresql/*/bin/initdb' >/dev/null || echo postgresql
}

# How to become root without being asked for a password; fails where that cannot be.
as_root() {
    if [ "$(id -u)" = 0 ]; then
        "$@"
    else
        sudo -n "$@"
    fi
}

# quietly COMMAND...: silent unless it fails.
quietly() {
    local log
    log=$(mktemp)
    if ! "$@" >"$log" 2>&1 </dev/null; then
        tail -n 3 "$log" >&2
        rm -f "$log"
        return 1
    fi
    rm -f "$log"
}

# apt-get, patient with another one that holds the lock.
apt() {
    quietly as_root env DEBIAN_FRONTEND=noninteractive \
        apt-get -q -y -o DPkg::Lock::Timeout=120 -o Acquire::Retries=3 "$@"
}

install_packages() {
    local package packages
    mapfile -t packages < <(missing)
    [ "${#packages[@]}" -gt 0 ] || return 0
    if ! command -v apt-get >/dev/null; then
        echo "needs.sh: no apt-get here; install by hand: ${packages[*]}"
        return 0
    fi
    if ! as_root true 2>/dev/null; then
        echo "needs.sh: neither root nor sudo without a password; install by hand: ${packages[*]}"
        return 0
    fi
    echo "needs.sh: installing ${packages[*]}"
    # A run before that was ended in the middle may have left things half done.
    quietly as_root dpkg --configure -a || true
    apt update || echo "needs.sh: apt-get update failed; trying with the lists that are here"
    apt install --no-install-recommends "${packages[@]}" && return 0
    # One that cannot be had must not keep the others away.
    for package in "${packages[@]}"; do
        apt install --no-install-recommends "$package" || echo "needs.sh: could not install $package"
    done
}

install_components() {
    command -v rustup >/dev/null || return 0
    cargo fmt --version >/dev/null 2>&1 && cargo clippy --version >/dev/null 2>&1 && return 0
    # Where there is no network this fails, and the steps that need them print SKIP.
    timeout 120 rustup component add rustfmt clippy >/dev/null 2>&1 </dev/null || true
}

# The source of the fio that is installed, which its engine is built against, in target/fio-source.
fetch_fio() (
    [ -z "${FIO_SRC:-}" ] && command -v fio >/dev/null && command -v apt-get >/dev/null || return 0
    [ "$(sed -n 's/^DEF_VER=//p' target/fio-source/FIO-VERSION-GEN 2>/dev/null)" != "$(fio --version)" ] || return 0
    rm -rf target/fio-source
    mkdir -p target/fio-source
    apt_aside "$PWD/target/fio-apt" 's/^Types:.*/Types: deb-src/' &&
        quietly apt-get -q update &&
        cd target/fio-apt && quietly apt-get -q source --download-only fio &&
        tar -xf fio_*.orig.tar.[gx]z --strip-components=1 -C ../fio-source &&
        rm -rf ../fio-apt || echo "needs.sh: no source of fio: its engine is not tested"
)

# What checks the licences. Built without optimisation, it is there in half the time.
install_deny() {
    command -v cargo-deny >/dev/null && return 0
    echo "needs.sh: building cargo-deny"
    quietly timeout 900 cargo install --quiet --locked --debug --version '^0.20' cargo-deny ||
        echo "needs.sh: could not build cargo-deny"
}

# Mounts by ordinary users need it, and udev makes it so; a machine without udev has it for root alone.
open_fuse() {
    [ ! -c /dev/fuse ] || [ "$(id -u)" != 0 ] || chmod a+rw /dev/fuse || true
}

install_packages
install_components
fetch_fio
[ -z "$ALL" ] || install_deny
[ -z "$ALL" ] || open_fuse
for package in $(missing); do
    echo "SKIP tests of what $package brings: it is not installed"
done
