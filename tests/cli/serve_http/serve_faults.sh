#!/usr/bin/env bash
# quick
# serve_faults.sh - ranks of a server that die or stop: see serve_faults.py.
. "$(dirname "$0")/../lib/serve_lib.bash"
trained --steps 2
asked serve_faults.py "$TMP/run/step-2"
finish
