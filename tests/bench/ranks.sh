#!/usr/bin/env bash
# ranks.sh - the cost of more ranks than cores: a training step of the same total work with 8 ranks against 2,
# in turn. Prints rows as tests/bench/run reads them; ratio 0.5: 8 ranks take twice the time.
# usage: BIN=DIR tests/bench/ranks.sh [TURNS (2) [OPTION OF PTRAIN...]]
set -u
turns=${1:-2}
shift
tmp=$(mktemp -d "${TMPDIR:-/tmp}/shardline-ranks-XXXXXX") || exit 1
trap 'rm -rf "$tmp"' EXIT
awk 'BEGIN { srand(1); while (n++ < 200000) printf "%c", 97 + int(rand() * 26) }' >"$tmp/text"

# step_ms ARGS...: milliseconds of the steps past the first, one a line
step_ms() {
    "$BIN/ptrain" --data "$tmp/text" --model 10m --seq-len 128 --global-batch 8 --steps 5 --out "$tmp/out" \
        --log "$tmp/log" "$@" >/dev/null 2>"$tmp/err" ||
        { sed 's/^/ranks: /' "$tmp/err" | tail -n 1 >&2; exit 1; }
    sed -n '1,$s/.*"step":\([0-9]*\),"loss".*"tokens":\([0-9]*\),"tokens_per_s":\([0-9.e+]*\).*/\1 \2 \3/p' \
        "$tmp/log" | awk 'NR > 1 { print $2 / $1 / $3 * 1000 }'
    rm -rf "$tmp/out"
}
median() {
    sort -n | awk '{ x[NR] = $1 } END { print NR % 2 ? x[(NR + 1) / 2] : (x[NR / 2] + x[NR / 2 + 1]) / 2 }'
}

rows=
for layout in "dp" "zero 3" "tp"; do
    : >"$tmp/2"; : >"$tmp/8"
    for ((turn = 0; turn < turns; turn++)); do
        for n in 2 8; do
            case $layout in
            dp) args=(--ranks $n) ;;
            zero*) args=(--ranks $n --zero 3) ;;
            tp) args=(--ranks $n --tp $n) ;;
            esac
            step_ms "${args[@]}" "$@" >>"$tmp/$n" || exit 1
        done
    done
    two=$(median <"$tmp/2") eight=$(median <"$tmp/8")
    row=$(awk -v l="$layout" -v a="$eight" -v b="$two" \
        'BEGIN { printf "{\"name\":\"training step 10m, %s, 8 ranks\",\"ours\":%.1f,\"peer\":%.1f,\"peer_name\":\"2 ranks\",\"unit\":\"ms\",\"ratio\":%.3f}", l, a, b, b / a }')
    awk -v l="$layout" -v a="$eight" -v b="$two" \
        'BEGIN { printf "training step 10m, %-8s 8 ranks %8.1f ms   2 ranks %8.1f ms   %5.2f times the time\n", l, a, b, a / b }'
    rows+=${rows:+,}$row
done
echo "{\"rows\":[$rows]}"
