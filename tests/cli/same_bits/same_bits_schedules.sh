#!/usr/bin/env bash
# all
# same_bits_schedules.sh - the same bits of every schedule with every recompute, for families that differ in
# what a layer keeps.
. "$(dirname "$0")/../lib/train_lib.bash"
text 3 60000 >"$TMP/text"
steps=${SAME_BITS_STEPS:-3}

deeper() { sed -i 's/"num_hidden_layers":2/"num_hidden_layers":5/; s/"n_layer":2/"n_layer":5/' "$1"; }

for name in llama-biases qwen2 qwen3 gpt2; do
    for dtype in fp32 bf16; do
        family "$TMP/model.json" $name
        deeper "$TMP/model.json"
        common=(--data "$TMP/text" --model "$TMP/model.json" --steps "$steps" --seq-len 33 --global-batch 8 \
            --threads 1 --dtype $dtype)
        reference
        for again in none selective full; do
            for schedule in gpipe 1f1b interleaved zero-bubble naive; do
                virtual=$([ $schedule = interleaved ] && echo 2 || echo 1)
                same "$name $dtype" --pp 2 --micro-batch 1 --schedule $schedule --virtual-stages $virtual \
                    --recompute $again
            done
            for zero in 0 1 2 3; do
                same "$name $dtype" --pp 2 --ranks 4 --zero $zero --micro-batch 1 --schedule zero-bubble \
                    --recompute $again
            done
            same "$name $dtype" --pp 4 --micro-batch 1 --schedule zero-bubble --recompute $again
            same "$name $dtype" --pp 2 --tp 4 --ranks 8 --micro-batch 2 --schedule zero-bubble --recompute \
                $again
        done
    done
done
finish
