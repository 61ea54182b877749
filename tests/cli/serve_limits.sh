#!/usr/bin/env bash
# quick
# serve_limits.sh - requests that take too long to compute, or to arrive; names that clients give to requests: see serve_limits.py.
here=$(cd "$(dirname "$0")" && pwd)
. "$here/lib.bash"
command -v python3 >/dev/null || { skip "no python3"; finish; }
for i in $(seq 300); do echo "line $i: $((i * i)) is the square of $i"; done >"$TMP/text"
run ptrain --data "$TMP/text" --out "$TMP/run" --steps 2 --seq-len 64 --global-batch 4
claim "a model is trained" [ $rc = 0 ] || finish
for option in request-timeout receive-timeout; do
    run pserve "$TMP/run/step-2" --$option -1
    claim "--$option -1 is wrong usage" [ $rc = 2 -a "$(wc -l <"$TMP/.err")" = 1 ]
done
BIN=$BIN exec python3 "$here/serve_limits.py" "$TMP/run/step-2"
