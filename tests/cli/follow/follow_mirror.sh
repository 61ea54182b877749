#!/usr/bin/env bash
# quick waits
# follow_mirror.sh - a pshare behind another one: what changed comes over the wire, and all of it where that does not do: see
# follow_mirror.py.
. "$(dirname "$0")/../lib/serve_lib.bash"
trained --steps 4 --save-every 1 --lr 0.00001
asked follow_mirror.py "$TMP"
finish
