#!/usr/bin/env bash
# Measures the rows of BENCHMARKS.md with another build of udm and with this tree's, in turns: what a change has cost.
#
#   scripts/bench-before.sh OLD-UDM [ROUNDS [ROWS]]
#
# ROWS are the numbers of the rows, as 2,5,13; all unless given. RUNTIME is how long one measurement takes, 150ms unless set. Prints requests a second of both, and the ratio of the new to the old with its spread; above 1 the new one is faster.
set -euo pipefail
cd "$(dirname "$0")/.."
old=${1:?usage: scripts/bench-before.sh OLD-UDM [ROUNDS [ROWS]]}
rounds=${2:-9}
only=,${3:-},
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
. scripts/in-turns.sh
new=target/release/udm
[ -x "$new" ] || { echo "there is no $new: run \`make build\` first" >&2; exit 1; }

# A comment and the command below it, as the page has them, without the options that say how long.
awk '/^# /{name=substr($0,3)} /^udm bench --concise/{print ++row " " name "\t" $0}' BENCHMARKS.md >"$dir/rows"

one() { # UDM CASE: a row that is all reads or all writes has one number that is not zero
    local command
    command=$(awk -F'\t' -v name="$2" '$1 == name {print $2; exit}' "$dir/rows")
    command=$(sed -E "s/ --against [^ ]+//; s/^udm /'' /" <<<"$command")
    eval "set -- \"\$1\" $command"
    local udm=$1
    shift 2
    "$udm" "$@" --runtime "${RUNTIME:-150ms}" --rounds 1 --json 2>/dev/null |
        awk -F'[:,]' '/"iops"/ {sum += $2} END {print sum}'
}

echo 'row, requests a second of the new build and of the old one, new / old'
cut -f1 "$dir/rows" | while IFS= read -r name; do
    [[ $only == ,, || $only == *,${name%% *},* ]] || continue
    in_turns "$new" "$old" "$name"
done
