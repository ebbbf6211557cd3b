#!/usr/bin/env bash
# Builds libudm_fio.so, fio's external ioengine, into out/: FIO_SRC=DIR fio-engine/build.sh [--debug]
# DIR holds the source of the fio that will load it; `apt-get source fio` brings it.
set -euo pipefail
cd "$(dirname "$0")/.."
fail() {
    echo "fio-engine: $*" >&2
    exit 1
}

profile=release
if [ "${1:-}" = --debug ]; then profile=debug; fi
src=${FIO_SRC:-}
[ -n "$src" ] || fail "FIO_SRC=DIR is missing: the source of the installed fio, as \`apt-get source fio\` brings it"
src=$(realpath "$src") || fail "FIO_SRC: no such directory"
[ -f "$src/ioengines.h" ] || fail "$src/ioengines.h is missing: expected the source of fio"
command -v cc >/dev/null || fail "no C compiler: install gcc"

# The structures of the engine's interface change from release to release.
if command -v fio >/dev/null; then
    installed=$(fio --version)
    given=$(sed -n 's/^DEF_VER=//p' "$src/FIO-VERSION-GEN" 2>/dev/null) || fail "$src/FIO-VERSION-GEN is missing: expected the source of $installed"
    [ "$installed" = "$given" ] || fail "$src is $given, but $installed is installed: fetch that one's source"
fi

out=$(realpath -m out/fio-engine)
mkdir -p "$out"
# Configured aside, so that the source stays as it was.
if ! [ -f "$out/config-host.h" ] || ! [ "$out/config-host.h" -nt "$src/configure" ]; then
    (cd "$out" && "$src/configure" >configure.log 2>&1) || fail "$src/configure failed; see $out/configure.log"
fi
if [ "$profile" = release ]; then
    cargo build --quiet --release --package udm-capi
elif [ -z "${UDM_ALL_BUILT:-}" ]; then
    cargo build --quiet --package udm-capi
fi
target=$(cargo metadata --format-version 1 --no-deps | sed 's/.*"target_directory":"\([^"]*\)".*/\1/')
cc -Wall -Werror -Wno-unused-parameter -O2 -g -std=gnu99 -D_GNU_SOURCE -include "$out/config-host.h" -I "$src" -I crates/capi/include \
    -shared -fPIC -Wl,--exclude-libs,ALL -o "$out/libudm_fio.so" fio-engine/udm.c "$target/$profile/libudm.a" -lpthread -ldl -lm
echo "$out/libudm_fio.so"
