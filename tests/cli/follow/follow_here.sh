#!/usr/bin/env bash
# quick waits
# follow_here.sh - the ways by which a version comes from a pshare of this machine: see follow_here.py.
. "$(dirname "$0")/../lib/serve_lib.bash"
trained --steps 3 --save-every 1
asked follow_here.py "$TMP"
finish
