#!/usr/bin/env bash
# quick waits
# follow.sh - a server that follows what a trainer publishes: see follow.py.
. "$(dirname "$0")/../lib/serve_lib.bash"
trained --steps 4 --save-every 1
printf 'admin-key\n' >"$TMP/admin-keys"
run pserve "$TMP/run/step-1" --follow --port 0
claim "a folder cannot be followed" [ $rc = 2 -a "$(wc -l <"$TMP/.err")" = 1 ]
claim "and the reason names it" has "$err" "run/step-1: a folder does not say when it changes"
run pserve "$TMP/run/step-1" --follow-mode wait --port 0
claim "a mode needs something to follow" [ $rc = 2 -a "$(wc -l <"$TMP/.err")" = 1 ]
asked follow.py "$TMP"
finish
