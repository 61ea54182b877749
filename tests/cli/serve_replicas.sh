#!/usr/bin/env bash
# quick
# serve_replicas.sh - independent tp groups behind one port: see serve_replicas.py. ALL=1: more layouts, more ranks that die (serve_replicas_all.sh).
here=$(cd "$(dirname "$0")" && pwd)
. "$here/lib.bash"
command -v python3 >/dev/null || { skip "no python3"; finish; }
for i in $(seq 300); do echo "line $i: $((i * i)) is the square of $i"; done >"$TMP/text"
run ptrain --data "$TMP/text" --out "$TMP/run" --steps 2 --seq-len 64 --global-batch 4
claim "a model is trained" [ $rc = 0 ] || finish
run pserve "$TMP/run/step-2" --replicas 2 --once x
claim "--once has nothing to do for replicas" [ $rc = 2 -a "$(wc -l <"$TMP/.err")" = 1 ]
run pserve "$TMP/run/step-2" --replicas 0
claim "no replica at all is wrong usage" [ $rc = 2 -a "$(wc -l <"$TMP/.err")" = 1 ]
run pserve "$TMP/run/step-2" --replicas 2 --ranks-per-node 1 --port 0
claim "replicas on several machines are refused" [ $rc = 2 ]
claim "that says what to do" has "$err" "load balancer"
BIN=$BIN TMPDIR=$TMP python3 "$here/serve_replicas.py" "$TMP/run/step-2" ${ALL:+all} >"$TMP/replicas" 2>&1
grep -v '^[0-9]* passed' "$TMP/replicas"
read -r p f <<<"$(sed -n 's/^\([0-9]*\) passed, \([0-9]*\) failed.*/\1 \2/p' "$TMP/replicas")"
n_passed=$((n_passed + ${p:-0})) n_failed=$((n_failed + ${f:-1}))
claim "no socket is left behind" [ -z "$(ls -d "$TMP"/pserve-* 2>/dev/null)" ]
finish
