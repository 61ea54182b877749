#!/usr/bin/env bash
# quick waits
# follow_slow.sh - a pshare behind a wire on which a version takes longer than the trainer takes for the next ones: see
# follow_slow.py.
. "$(dirname "$0")/../lib/serve_lib.bash"
trained --steps 4 --save-every 1 --lr 0.00001 --ranks 2 --tp 2
asked follow_slow.py "$TMP"
finish
