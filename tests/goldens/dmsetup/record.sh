#!/bin/bash
# Record the goldens: run every scenario with the real dmsetup on a real kernel, in the lab's guest,
# and write what it printed back into the scenario's file.
#
#   record.sh [--check] [NAME...]       all scenarios and facts, or NAME.golden ..., limits, targets
#     --check    change no file; print a diff and fail when a recording would differ
#
# README.md beside this file tells the format. Where no guest can be had: SKIP, exit status 0.
set -euo pipefail
cd "$(dirname "$0")"
LAB_SCRIPTS=../../lab

CHECK=0
if [ "${1:-}" = --check ]; then CHECK=1; shift; fi
[ $# -gt 0 ] || { set -- *.golden; set -- "${@%.golden}" limits targets; }

"$LAB_SCRIPTS/available.sh" true | { ! grep '^SKIP'; } || exit 0

JOB=$(mktemp -d)
trap 'rm -rf "$JOB"' EXIT
mkdir "$JOB/scenarios" "$JOB/recorded"
for name; do
    case $name in
        limits | targets) : > "$JOB/want-$name" ;;
        *) cp "$name.golden" "$JOB/scenarios/" ;;
    esac
done
"$LAB_SCRIPTS/run-guest.sh" -o "$JOB" -t 1800 -f facts-guest.sh -f limits-guest.sh record-guest.sh ||
    { echo "the guest did not record everything; nothing was changed" >&2; exit 1; }

if [ $CHECK = 1 ]; then
    status=0
    for file in "$JOB"/recorded/*; do diff -u "$(basename "$file")" "$file" || status=1; done
    exit $status
fi
cp "$JOB"/recorded/* .
