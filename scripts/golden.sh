#!/usr/bin/env bash
# Records the expected outputs again: runs every `record.sh` that stands beside goldens. Each
# says at its head which real program it asks, and what that needs.
set -euo pipefail
cd "$(dirname "$0")/.."
mapfile -d '' -t scripts < <(find . -path ./target -prune -o -name record.sh -print0 | sort -z)
if [ "${#scripts[@]}" = 0 ]; then
    echo "golden.sh: there is no record.sh in this tree" >&2
    exit 1
fi
for script in "${scripts[@]}"; do
    echo "== $script"
    "$script"
done
git status --short
