#!/usr/bin/env bash
# quick waits
# follow_carry.sh - swaps that keep what runs, after its context was computed with the new weights: see
# follow_carry.py. follow_carry_all.sh has other models and layouts. With an argument: that line alone
# (tests/altered.d).
. "$(dirname "$0")/../lib/serve_lib.bash"
trained --steps 3 --save-every 1
for layout in "--tp 1" "--tp 2"; do
    what=$layout
    asked follow_carry.py "$TMP" many $layout
    [ $# = 0 ] || finish
done
what="a small pool"
asked follow_carry.py "$TMP" small --kv-memory 5243K
finish
