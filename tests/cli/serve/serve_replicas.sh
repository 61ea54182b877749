#!/usr/bin/env bash
# quick
# serve_replicas.sh - independent tp groups behind one port: see serve_replicas.py. ALL=1: more layouts, more
# ranks that die (serve_replicas_all.sh).
. "$(dirname "$0")/../lib/serve_lib.bash"
trained --steps 2
run pserve "$TMP/run/step-2" --replicas 2 --once x
claim "--once has nothing to do for replicas" [ $rc = 2 -a "$(wc -l <"$TMP/.err")" = 1 ]
run pserve "$TMP/run/step-2" --replicas 0
claim "no replica at all is wrong usage" [ $rc = 2 -a "$(wc -l <"$TMP/.err")" = 1 ]
run pserve "$TMP/run/step-2" --replicas 2 --ranks-per-node 1 --port 0
claim "replicas on several machines are refused" [ $rc = 2 ]
claim "that says what to do" has "$err" "load balancer"
TMPDIR=$TMP asked serve_replicas.py "$TMP/run/step-2" ${ALL:+all}
claim "no socket is left behind" [ -z "$(ls -d "$TMP"/pserve-* 2>/dev/null)" ]
finish
