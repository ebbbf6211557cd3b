#!/usr/bin/env bash
# Installs what was built: udm, libudm with its header, pkg-config file and manual pages. DESTDIR goes before everything.
set -euo pipefail
cd "$(dirname "$0")/.."

prefix=${1:?the folder to install into}
case $prefix in
    /*) ;;
    *) echo "install.sh: $prefix: expected an absolute path" >&2; exit 1 ;;
esac
built=${2:-target/release}
root=${DESTDIR:-}$prefix
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)

install -D -m 755 "$built/udm" "$root/sbin/udm"
install -D -m 755 "$built/udm-experiments" "$root/libexec/udm/udm-experiments"
install -D -m 644 "$built/libudm.so" "$root/lib/libudm.so"
install -D -m 644 "$built/libudm.a" "$root/lib/libudm.a"
install -D -m 644 crates/capi/include/udm.h "$root/include/udm.h"
install -D -m 644 docs/man/libudm.3 "$root/share/man/man3/libudm.3"
install -D -m 644 docs/man/udm.8 "$root/share/man/man8/udm.8"
install -d "$root/lib/pkgconfig"
cat >"$root/lib/pkgconfig/udm.pc" <<EOF
prefix=$prefix
libdir=\${prefix}/lib
includedir=\${prefix}/include

Name: udm
Description: The Linux device mapper in user space, in a program of one's own
Version: $version
Libs: -L\${libdir} -ludm
Libs.private: -lgcc_s -lutil -lrt -lpthread -lm -ldl -lc
Cflags: -I\${includedir}
EOF
