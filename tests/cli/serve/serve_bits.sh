#!/usr/bin/env bash
# quick
# serve_bits.sh - the numerics contract at the server: see serve_bits.py. Models are trained here for a few steps, in fp32 and bf16,
# in layouts that the server does not have.
. "$(dirname "$0")/../lib/serve_lib.bash"
head -c 3000 "$TMP/text" >"$TMP/held-out"
part=
for dtype in fp32 bf16; do
    run ptrain --data "$TMP/text" --out "$TMP/$dtype" --dtype $dtype --steps 4 --seq-len 64 --global-batch 4 --ranks 4 --tp 2 --zero 3
    claim "a model is trained" [ $rc = 0 ] || finish
    run ptrain --eval-only --init "$TMP/$dtype/step-4" --eval-data "$TMP/held-out" --seq-len 64 --eval-logprobs "$TMP/$dtype.jsonl"
    claim "and evaluated" [ $rc = 0 ] || finish
    what=$dtype asked serve_bits.py "$TMP/$dtype/step-4" "$TMP/$dtype.jsonl" $part
    part=part
done

# what a rank holds: half of the keys and values, and nearly half of the weights, at tp 2
held() { sed -n "s/.*rank $1: weights \([0-9]*\) bytes, kv \([0-9]*\) bytes.*/\1 \2/p" "$TMP/.err"; }
run pserve "$TMP/fp32/step-4" --once "line" --max-tokens 2 --verbose
read -r weights kv <<<"$(held 0)"
run pserve "$TMP/fp32/step-4" --once "line" --max-tokens 2 --verbose --tp 2
for rank in 0 1; do
    read -r weights2 kv2 <<<"$(held $rank)"
    claim "rank $rank holds half of the keys and values" [ $((2 * ${kv2:-0})) = "${kv:-1}" ]
    claim "and nearly half of the weights" [ $((100 * ${weights2:-0})) -lt $((52 * ${weights:-0})) ]
done
finish
