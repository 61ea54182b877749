#!/usr/bin/env bash
# quick
# serve_bits.sh - the numerics contract at the server: see serve_bits.py. The model is trained here for a few steps.
here=$(cd "$(dirname "$0")" && pwd)
. "$here/lib.bash"
command -v python3 >/dev/null || { skip "no python3"; finish; }
for i in $(seq 700); do echo "line $i: $((i * i)) is the square of $i, $((i % 7)) is left of seven"; done >"$TMP/text"
head -c 3000 "$TMP/text" >"$TMP/held-out"
run ptrain --data "$TMP/text" --out "$TMP/run" --steps 4 --seq-len 64 --global-batch 4
claim "a model is trained" [ $rc = 0 ] || finish
run ptrain --eval-only --init "$TMP/run/step-4" --eval-data "$TMP/held-out" --seq-len 64 --eval-logprobs "$TMP/eval.jsonl"
claim "and evaluated" [ $rc = 0 ] || finish
BIN=$BIN exec python3 "$here/serve_bits.py" "$TMP/run/step-4" "$TMP/eval.jsonl"
