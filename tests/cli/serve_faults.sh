#!/usr/bin/env bash
# quick
# serve_faults.sh - ranks of a server that die or stop: see serve_faults.py.
here=$(cd "$(dirname "$0")" && pwd)
. "$here/lib.bash"
command -v python3 >/dev/null || { skip "no python3"; finish; }
for i in $(seq 300); do echo "line $i: $((i * i)) is the square of $i"; done >"$TMP/text"
run ptrain --data "$TMP/text" --out "$TMP/run" --steps 2 --seq-len 64 --global-batch 4
claim "a model is trained" [ $rc = 0 ] || finish
BIN=$BIN exec python3 "$here/serve_faults.py" "$TMP/run/step-2"
