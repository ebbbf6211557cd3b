# Sourced by the scripts that compare two servers. They set `rounds` and `dir` and define `one SERVER CASE`, which prints a number.

# Measures two servers in turns, and prints the case, the median of both, and the median and spread of the ratio.
in_turns() { # SERVER AGAINST CASE
    : >"$dir/rounds"
    round=0
    while [ "$round" -lt "$rounds" ]; do
        # Who goes first changes, so that neither always has the warmer cache.
        if [ $((round % 2)) = 0 ]; then
            a=$(one "$1" "$3"); b=$(one "$2" "$3")
        else
            b=$(one "$2" "$3"); a=$(one "$1" "$3")
        fi
        echo "$a $b" >>"$dir/rounds"
        round=$((round + 1))
    done
    awk -v name="$3" '
        function sort(v, n,   i, j, t) {
            for (i = 2; i <= n; i++) for (j = i; j > 1 && v[j] < v[j-1]; j--) { t = v[j]; v[j] = v[j-1]; v[j-1] = t }
        }
        function median(v, n) { return n % 2 ? v[(n + 1) / 2] : (v[n / 2] + v[n / 2 + 1]) / 2 }
        { a[NR] = $1; b[NR] = $2; r[NR] = $1 / $2 }
        END {
            sort(a, NR); sort(b, NR); sort(r, NR)
            printf "%-18s %10.0f %10.0f   %.3f (%.3f..%.3f)\n", name, median(a, NR), median(b, NR), median(r, NR), r[1], r[NR]
        }' "$dir/rounds"
}
