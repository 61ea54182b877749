#!/usr/bin/env bash
# quick
# serve_bits.sh - the numerics contract at the server: see serve_bits.py. Models are trained here for a few
# steps, in fp32 and bf16, in layouts that the server does not have: a dense one, and a mixture of experts
# whose experts are served cut by tp and whole (--ep).
. "$(dirname "$0")/../lib/serve_lib.bash"
head -c 3000 "$TMP/text" >"$TMP/held-out"

# trained_and_asked NAME DTYPE PART TRAINING...
trained_and_asked() {
    local name=$1 dtype=$2 part=$3
    shift 3
    run ptrain --data "$TMP/text" --out "$TMP/$name" --dtype "$dtype" --steps 4 --seq-len 64 --global-batch \
        4 --ranks 4 "$@"
    claim "a model is trained" [ $rc = 0 ] || finish
    run ptrain --eval-only --init "$TMP/$name/step-4" --eval-data "$TMP/held-out" --seq-len 64 \
        --eval-logprobs "$TMP/$name.jsonl"
    claim "and evaluated" [ $rc = 0 ] || finish
    what=$name asked serve_bits.py "$TMP/$name/step-4" "$TMP/$name.jsonl" "$part"
}

trained_and_asked fp32 fp32 all --tp 2 --zero 3
trained_and_asked bf16 bf16 few --tp 2 --zero 3
trained_and_asked experts-fp32 fp32 experts --model tiny-moe --tp 2 --ep 4
[ "${SERVE_BITS:-}" != all ] ||
    trained_and_asked experts-bf16 bf16 experts --model tiny-moe --ep 2 --zero 1 --lr 1e-2

# what a rank holds: half of the keys and values, and nearly half of the weights, at tp 2
held() { sed -n "s/.*rank $1: weights \([0-9]*\) bytes, kv \([0-9]*\) bytes.*/\1 \2/p" "$TMP/.err"; }
export SHARDLINE_MAP=off # mapped weights are not memory of a rank
run pserve "$TMP/fp32/step-4" --once "line" --max-tokens 2 --verbose
read -r weights kv <<<"$(held 0)"
run pserve "$TMP/fp32/step-4" --once "line" --max-tokens 2 --verbose --tp 2
for rank in 0 1; do
    read -r weights2 kv2 <<<"$(held $rank)"
    claim "rank $rank holds half of the keys and values" [ $((2 * ${kv2:-0})) = "${kv:-1}" ]
    claim "and nearly half of the weights" [ $((100 * ${weights2:-0})) -lt $((52 * ${weights:-0})) ]
done
finish
