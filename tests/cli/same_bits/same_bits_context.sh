#!/usr/bin/env bash
# quick
# same_bits_context.sh - sequences that are cut into leaves (--cp-grain) give the bits of one rank at every layout, whose ranks may divide the
# leaves (--cp); saved at one cp and resumed at another; what is refused.
. "$(dirname "$0")/../lib/train_lib.bash"
text 5 60000 >"$TMP/text"

config "$TMP/model.json" max_position_embeddings=512
common=(--data "$TMP/text" --model "$TMP/model.json" --steps 3 --seq-len 512 --global-batch 4 --threads 1)
reference
plain_state=$ref_state
common+=(--cp-grain 4)
reference
claim "four leaves a sequence are another order" [ "$ref_state" != "$plain_state" ]
claim "the log names the order" grep -q '"event":"orders".*"cp_grain":4' "$TMP/reference.jsonl"
same "leaves one micro-batch after the other, two threads" --micro-batch 1 --threads 2
same "replicated kv heads: leaf by leaf over the replicas" --tp 4 --micro-batch 2
same "shares of every leaf, late weight gradients" --tp 2 --sp --pp 2 --micro-batch 1 --schedule zero-bubble --recompute full
same "ZeRO-3 over dp" --ranks 2 --zero 3 --micro-batch 1
same "two leaves a rank" --cp 2
same "a leaf a rank, ZeRO-3, layers computed again" --cp 4 --zero 3 --recompute full
same "two leaves a rank, replicated kv heads, shares" --cp 2 --tp 4 --sp --zero 1
same "two leaves a rank in a pipeline, dp beside" --cp 2 --pp 2 --ranks 8 --zero 2 --schedule zero-bubble

train half --stop-after 2 --cp 2 --ranks 4 --zero 2
claim "two steps at cp 2" [ $rc = 0 ]
claim "the checkpoint keeps the order" grep -q '"orders":{"cp_grain":4}' "$TMP/half/step-2/manifest.json"
run "$BIN/ptrain" --data "$TMP/text" --out "$TMP/rest" --resume "$TMP/half/step-2" --threads 1
claim "resumed on one rank, it ends in the same state" [ "$(state_of "$out")" = "$ref_state" ]
run reshard --dp 2 --zero 1 "$TMP/half/step-2" "$TMP/cut"
claim "resharded to dp 2" [ $rc = 0 ]
train rest --resume "$TMP/cut" --cp 4 --ranks 4
claim "and resumed at cp 4" [ "$state" = "$ref_state" ]

# sequences of the batch: three, which are a run of the tree, not a power of two
common=(--data "$TMP/text" --model "$TMP/model.json" --steps 2 --seq-len 256 --global-batch 6 --threads 1 --cp-grain 2 --dtype bf16)
reference
same "bf16: three sequences a rank" --ranks 2 --micro-batch 1
same "bf16: a leaf a rank" --cp 2 --zero 1

for name in gpt_oss deepseek_v3 qwen3; do # windows and sinks; latent attention; norms of heads
    family "$TMP/model.json" $name
    common=(--data "$TMP/text" --model "$TMP/model.json" --steps 2 --seq-len 256 --global-batch 2 --threads 1 --cp-grain 2)
    reference
    same "$name: leaves by tp" --tp 2 --micro-batch 1
    same "$name: a leaf a rank" --cp 2 --tp 2
done

refused() {                 # refused TEXT ARGS...: status 2 and one line with this text
    local what=$1
    shift
    run "$BIN/ptrain" --data "$TMP/text" --out "$TMP/none" --model tiny --steps 1 --seq-len 256 --global-batch 2 --threads 1 "$@"
    claim "refused ($*): $what" [ $rc = 2 ] && claim "it says why: $err" grep -q -- "$what" <<<"$err"
}
refused "does not divide the 1 leaves" --cp 2
refused "no power of two" --cp-grain 3
refused "does not divide into 4 leaves" --cp-grain 4
refused "a micro-batch is one sequence" --cp 2 --cp-grain 2 --micro-batch 2
finish
