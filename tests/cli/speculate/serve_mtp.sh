#!/usr/bin/env bash
# quick
# serve_mtp.sh - guesses of a checkpoint's layer for multi-token prediction: see serve_mtp.py. SERVE_MTP=all: in
# every layout, and against transformers (PEER_PYTHON).
. "$(dirname "$0")/../lib/serve_lib.bash"
asked serve_mtp.py "$TMP/models" "${SERVE_MTP:-few}"
finish
