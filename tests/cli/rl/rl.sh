#!/usr/bin/env bash
# quick
# rl.sh - three updates by rewards, the trainer on two data-parallel ranks, the server on two tensor-parallel ones:
# see rl.py.
. "$(dirname "$0")/../lib/serve_lib.bash"
trained --steps 20 --warmup 2
printf 'admin-key\n' >"$TMP/admin-keys"
asked rl.py "$TMP" "${RL_UPDATES:-3}" "--ranks 2 --zero 2" "--tp 2"
finish
