#!/usr/bin/env bash
# all
# serve_speed.sh - continuous batching pays: see serve_speed.py. The model is larger than the caches of a
# core.
here=$(cd "$(dirname "$0")" && pwd)
. "$here/../lib/lib.bash"
command -v python3 >/dev/null || { skip "no python3"; finish; }
seq 5000 >"$TMP/text"
run ptrain --model 10m --data "$TMP/text" --out "$TMP/run" --steps 1 --seq-len 32 --global-batch 2
claim "a model is trained" [ $rc = 0 ] || finish
for tp in 1 2; do
    run python3 "$here/serve_speed.py" "$TMP/run/step-1" $tp
    claim "eight requests at tp $tp" [ $rc = 0 ]
    grep '^tp' <<<"$out"
done
finish
