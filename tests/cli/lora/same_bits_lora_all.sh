#!/usr/bin/env bash
# all
# same_bits_lora_all.sh - adapters in every kind of layout: tp, sp, pipelines and their schedules, ZeRO 1 to 3,
# micro-batches, recomputation, cp, ep, offload, bf16; families with biases, fused and transposed matrices,
# experts, latent attention. --eval-only gives the same log-probs at every layout.
. "$(dirname "$0")/../lib/train_lib.bash"
text 3 60000 >"$TMP/text"

# base NAME: weights of $TMP/model.json, which an adapter is trained on
base() {
    rm -rf "$TMP/base"
    run "$BIN/ptrain" --data "$TMP/text" --model "$TMP/model.json" --steps 1 --seq-len 16 --global-batch 1 \
        --threads 1 --out "$TMP/base"
    claim "$1: a base" [ $rc = 0 ]
}

config "$TMP/model.json" num_hidden_layers=4
base llama
common=(--data "$TMP/text" --init "$TMP/base/step-1" --lora r=6,alpha=12,targets=all-linear,rslora=1 \
    --steps 3 --seq-len 64 --global-batch 8 --threads 1)
for dtype in fp32 bf16; do
    reference --dtype $dtype
    while read -r -a layout; do
        same "$dtype" --dtype $dtype "${layout[@]}"
    done <<'LAYOUTS'
--tp 2
--tp 4 --micro-batch 2
--tp 8
--tp 2 --sp --ranks 4 --zero 2
--tp 4 --sp --recompute selective
--ranks 4 --zero 1
--ranks 4 --zero 2 --overlap off
--ranks 8 --zero 3
--ranks 2 --zero 3 --micro-batch 1 --recompute full
--pp 2 --micro-batch 1 --schedule gpipe
--pp 4 --micro-batch 2
--pp 2 --micro-batch 1 --schedule interleaved --virtual-stages 2
--pp 2 --tp 2 --micro-batch 1 --schedule zero-bubble
--pp 2 --tp 2 --ranks 8 --zero 2 --micro-batch 1 --recompute full
LAYOUTS
done
leaves=(--cp-grain 2 --seq-len 256 --global-batch 4)
reference "${leaves[@]}"
same "sequences cut into leaves" "${leaves[@]}" --cp 2 --tp 2 --ranks 8 --zero 3
same "… whole on every rank" "${leaves[@]}" --tp 2 --ranks 4 --zero 1
mkdir "$TMP/disk"
reference
same "masters and moments in files" --offload "$TMP/disk" --ranks 2 --zero 2

for f in qwen2 gpt2 neox gemma2 mixtral deepseek_v3; do
    family "$TMP/model.json" $f
    base $f
    common=(--data "$TMP/text" --init "$TMP/base/step-1" --lora r=3,alpha=6,targets=all-linear --steps 2 \
        --seq-len 32 --global-batch 4 --threads 1)
    reference
    same "$f" --tp 2 --ranks 4 --zero 3
    same "$f" --pp 2 --micro-batch 1 --schedule zero-bubble
    [ $f != mixtral ] && [ $f != deepseek_v3 ] || same "$f: experts divided" --ep 2 --ranks 2 --zero 1
done

logprobs() {
    run "$BIN/ptrain" --eval-only --init "$TMP/base/step-1" --lora-init "$TMP/reference/step-2" --eval-data \
        "$TMP/text" --seq-len 32 --eval-batches 2 --threads 1 --eval-logprobs "$TMP/$1" "${@:2}"
    claim "$*: evaluates" [ $rc = 0 ]
}
logprobs one --ranks 1
logprobs two --tp 2 --pp 2
claim "log-probs with an adapter are the same at another layout" cmp -s "$TMP/one" "$TMP/two"
finish
