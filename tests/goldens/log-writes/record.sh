#!/bin/bash
# Records the logs again: the kernel of the lab's guest writes them, this packs their images.
#
#   record.sh
#
# README.md beside this file tells what there is. Where no guest can be had: SKIP, exit status 0.
set -euo pipefail
cd "$(dirname "$0")"
LAB_SCRIPTS=../../lab

"$LAB_SCRIPTS/available.sh" true | { ! grep '^SKIP'; } || exit 0

JOB=$(mktemp -d)
trap 'rm -rf "$JOB"' EXIT
"$LAB_SCRIPTS/run-guest.sh" -o "$JOB" -t 600 record-guest.sh ||
    { echo "the guest did not record everything; nothing was changed" >&2; exit 1; }
for image in "$JOB"/recorded/*.log; do
    [ ! -e "$image" ] || ../pack.py "$image" "$(basename "$image").pages.gz"
done
for text in "$JOB"/recorded/*.txt; do cp "$text" .; done
