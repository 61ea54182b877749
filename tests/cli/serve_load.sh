#!/usr/bin/env bash
# all
# serve_load.sh - LOAD_CLIENTS (256) streaming clients for LOAD_SECONDS (10), some of which hang up, in a pool of pages that holds a few of them; then
# idle connections and slow readers: see serve_load.py. The figures are printed.
here=$(cd "$(dirname "$0")" && pwd)
. "$here/lib.bash"
command -v python3 >/dev/null || { skip "no python3"; finish; }
for i in $(seq 700); do echo "line $i: $((i * i)) is the square of $i"; done >"$TMP/text"
run ptrain --data "$TMP/text" --out "$TMP/run" --steps 4 --seq-len 64 --global-batch 4
claim "a model is trained" [ $rc = 0 ] || finish
ulimit -n 4096 2>/dev/null
python3 -B "$here/serve_load.py" "$TMP/run/step-4" "${LOAD_SECONDS:-10}" "${LOAD_CLIENTS:-256}" >"$TMP/load" 2>&1
grep -v '^[0-9]* passed' "$TMP/load"
read -r p f <<<"$(sed -n 's/^\([0-9]*\) passed, \([0-9]*\) failed.*/\1 \2/p' "$TMP/load")"
n_passed=$((n_passed + ${p:-0})) n_failed=$((n_failed + ${f:-1}))
finish
