#!/usr/bin/env bash
# quick
# serve_kv.sh - keys and values stored in 8 bits (--kv-dtype): see serve_kv.py.
. "$(dirname "$0")/../lib/serve_lib.bash"
trained --steps 4 --dtype bf16
what=fp8 asked serve_kv.py "$TMP/run/step-4" fp8 few
what=int8 asked serve_kv.py "$TMP/run/step-4" int8 few

run pserve "$TMP/run/step-4" --kv-dtype int4
claim "another kind is refused" [ $rc = 2 -a "$(wc -l <"$TMP/.err")" = 1 ]
run pserve "$TMP/run/step-4" --kv-dtype fp8 --once 'line 7' --max-tokens 5
claim "one prompt is completed" [ $rc = 0 ]
finish
