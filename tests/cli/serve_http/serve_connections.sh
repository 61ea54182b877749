#!/usr/bin/env bash
# quick
# serve_connections.sh - connections that no good client makes: see serve_connections.py.
. "$(dirname "$0")/../lib/serve_lib.bash"
trained --steps 2
printf 'key-1\nkey-2\n' >"$TMP/keys"
asked serve_connections.py "$TMP/run/step-2" "$TMP/keys"
finish
