#!/usr/bin/env bash
# quick waits
# serve_limits.sh - requests that take too long to compute, or to arrive; names that clients give to requests:
# see serve_limits.py.
. "$(dirname "$0")/../lib/serve_lib.bash"
trained --steps 2
for option in request-timeout receive-timeout; do
    run pserve "$TMP/run/step-2" --$option -1
    claim "--$option -1 is wrong usage" [ $rc = 2 -a "$(wc -l <"$TMP/.err")" = 1 ]
done
asked serve_limits.py "$TMP/run/step-2"
finish
