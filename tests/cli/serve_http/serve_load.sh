#!/usr/bin/env bash
# all
# serve_load.sh - LOAD_CLIENTS (256) streaming clients for LOAD_SECONDS (10), some of which disconnect, in a
# pool of pages that holds a few of them; then idle connections and slow readers: see serve_load.py. The
# figures are printed.
. "$(dirname "$0")/../lib/serve_lib.bash"
trained --steps 4
ulimit -n 4096 2>/dev/null
asked serve_load.py "$TMP/run/step-4" "${LOAD_SECONDS:-10}" "${LOAD_CLIENTS:-256}"
finish
