#!/usr/bin/env bash
# all long
# same_bits_balance_all.sh - --balance global and bias over layouts, one rank's bits at every step; saves
# while training goes on; what the balance does to the load of experts in 60 steps.
. "$(dirname "$0")/../lib/train_lib.bash"
text 4 60000 >"$TMP/text"

layouts() {
    same "$1: micro-batches" --micro-batch 1
    same "$1: micro-batches of two" --micro-batch 2 --threads 2
    same "$1: cut by tp, ZeRO-1" --tp 2 --ranks 4 --zero 1
    same "$1: cut by tp, shares of every sequence" --tp 4 --sp --ranks 4 --recompute selective
    same "$1: experts on two ranks, ZeRO-0" --ep 2 --ranks 4 --micro-batch 2
    same "$1: experts on four ranks, ZeRO-3" --ep 4 --ranks 4 --zero 3 --micro-batch 1 --recompute full
    same "$1: an expert group of tp ranks, messages" --tp 2 --ep 2 --ranks 4 --zero 2 --transport mpi
    same "$1: ZeRO-2, no overlap" --ranks 4 --zero 2 --micro-batch 1 --overlap off
    same "$1: stages, 1F1B" --pp 2 --ranks 4 --micro-batch 1 --zero 1
    same "$1: stages, GPipe" --pp 2 --tp 2 --ranks 4 --schedule gpipe --micro-batch 4
    same "$1: stages, late weight gradients" --pp 2 --ep 2 --ranks 4 --schedule zero-bubble --micro-batch 1
    same "$1: eight ranks" --tp 2 --pp 2 --ep 4 --ranks 8 --micro-batch 1 --zero 1
    same "$1: saved while training goes on" --ranks 2 --save-every 1 --save-async
    for step in 1 3; do
        train rest --resume "$TMP/layout/step-$step" --ranks 4 --tp 2 --ep 4 --zero 1
        claim "$1: resumed at step $step of it" [ "$state" = "$ref_state" ]
    done
    rm -rf "$TMP/layout" "$TMP/rest"
}

small=(--data "$TMP/text" --model "$TMP/model.json" --steps 5 --seq-len 64 --global-batch 8 --threads 1)
for name in mixtral qwen2_moe gpt_oss; do
    family "$TMP/model.json" $name
    common=("${small[@]}" --balance global --balance-rate 0.3 --z-loss 0.001)
    reference
    layouts "$name, global"
done
family "$TMP/model.json" deepseek_v3
common=("${small[@]}" --balance global --balance-rate 0.3 --dtype bf16)
reference
layouts "deepseek_v3 in bf16, global"
portable "portable C" --tp 2
for name in deepseek_v3 deepseek_plain; do
    family "$TMP/model.json" $name
    common=("${small[@]}" --balance bias --balance-rate 0.02)
    reference
    layouts "$name, bias"
done
portable "portable C" --tp 2

# ---- a step that is skipped leaves counts and biases as they were ----

# skipping FAMILY ARGS...: six steps, of which the fourth meets an embedding that is not a number; a
# checkpoint a step
skipping() {
    local head at f=$TMP/hf/model.safetensors
    family "$TMP/model.json" "$1"
    sed -i 's/"vocab_size":701/"vocab_size":256/' "$TMP/model.json"
    text 1 20000 >"$TMP/plain"
    { head -c 1000 "$TMP/plain"; printf Z; tail -c 15000 "$TMP/plain"; } >"$TMP/marked"
    common=(--data "$TMP/plain" --model "$TMP/model.json" --steps 1 --seq-len 32 --global-batch 4 --threads 1)
    rm -rf "$TMP/hf"
    train init
    run reshard --format hf --weights-only "$TMP/init/step-1" "$TMP/hf"
    head=$(od -An -tu8 -N8 "$f" | tr -d ' ')
    at=$(head -c $((head + 8)) "$f" | tail -c "$head" |
        sed 's/.*"model.embed_tokens.weight":{[^}]*"data_offsets":\[\([0-9]*\),.*/\1/')
    printf '\000\000\300\177' | dd of="$f" bs=1 seek=$((8 + head + at + 90 * 72 * 4)) conv=notrunc 2>/dev/null
    common=(--data "$TMP/marked" --init "$TMP/hf" --steps 6 --seq-len 64 --global-batch 4 --threads 1 \
        --data-order stride:1 --save-every 1 "${@:2}")
    reference
    claim "$*: the fourth step is skipped" has "$err" "step 4: loss nan"
    same "$*: on two ranks" --ranks 2 --zero 1
}
counts() { sed 's/.*"expert_counts":\(\[\[[^a-z]*\]\]\).*/\1/' "$TMP/reference/step-$1/manifest.json"; }
biases() { "$BIN/reshard" digest --tensors "$TMP/reference/step-$1" | grep e_score_correction_bias; }
skipping mixtral --balance global --balance-rate 0.3
claim "counts change from step to step" [ "$(counts 2)" != "$(counts 3)" ]
claim "a skipped step leaves them" [ "$(counts 3)" = "$(counts 4)" ] &&
    claim "the next one does not" [ "$(counts 4)" != "$(counts 5)" ]
skipping deepseek_plain --balance bias --balance-rate 0.05
claim "biases change from step to step" [ "$(biases 2)" != "$(biases 3)" ]
claim "a skipped step leaves them" [ "$(biases 3)" = "$(biases 4)" ] &&
    claim "the next one does not" [ "$(biases 4)" != "$(biases 5)" ]

# loads LOG: the busiest expert of all layers, the mean of the last ten of 60 steps
loads() {
    awk -F'"expert_load":' \
        '/"loss"/ && $2 { n++; gsub(/[][}]/, "", $2); k = split($2, x, ","); m = 0; for (i = 1; i <= k; i++) m = x[i] > m ? x[i] : m; last[n] = m }
        END { for (i = n - 9; i <= n; i++) s += last[i]; print s / 10 }' "$1"
}
common=(--data "$TMP/text" --model tiny-moe --steps 60 --seq-len 64 --global-batch 8)
train none
none=$(loads "$TMP/none.jsonl")
train global --balance global --balance-rate 0.01
claim "60 steps of tiny-moe: the busiest expert's load, $(loads \
    "$TMP/global.jsonl") with global, $none without" awk -v a="$(loads \
        "$TMP/global.jsonl")" -v b="$none" 'BEGIN { exit !(a < 0.75 * b) }'
family "$TMP/model.json" deepseek_plain
common=(--data "$TMP/text" --model "$TMP/model.json" --steps 60 --seq-len 64 --global-batch 8)
train none
none=$(loads "$TMP/none.jsonl")
train bias --balance bias --balance-rate 0.01
claim "60 steps of a DeepSeek: $(loads "$TMP/bias.jsonl") with bias, $none without" awk -v \
    a="$(loads "$TMP/bias.jsonl")" -v b="$none" 'BEGIN { exit !(a < 0.85 * b) }'
finish
