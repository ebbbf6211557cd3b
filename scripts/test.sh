#!/usr/bin/env bash
# Installs what the tests need where that is allowed, says what is missing where it is not, and
# runs everything. Ends with the line `N passed, N failed, N skipped`.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/needs.sh
export PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin
if [ -z "${FIO_SRC:-}" ] && [ -e target/fio-source/FIO-VERSION-GEN ]; then
    export FIO_SRC=$PWD/target/fio-source
fi
exec cargo xtask ci
