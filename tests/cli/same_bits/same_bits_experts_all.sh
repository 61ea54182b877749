#!/usr/bin/env bash
# all long
# same_bits_experts_all.sh - routers at many layouts: tp, ep, dp, ZeRO, pp and
# schedules, sp, micro-batch, recompute, overlap, threads, dtype.
. "$(dirname "$0")/../lib/train_lib.bash"
text 5 60000 >"$TMP/text"
steps=${SAME_BITS_STEPS:-3}

for name in ${FAMILIES:-mixtral qwen2_moe qwen3_moe deepseek_v3 deepseek_plain}; do
    for dtype in fp32 bf16; do
        family "$TMP/model.json" $name
        common=(--data "$TMP/text" --model "$TMP/model.json" --steps "$steps" --seq-len 64 --global-batch 8 \
            --threads 1 --dtype $dtype)
        reference
        same "$name $dtype" --ranks 8 --ep 2 --zero 0 --micro-batch 1 --overlap on
        same "$name $dtype" --ranks 8 --ep 4 --zero 3 --recompute full --threads 2
        same "$name $dtype" --ranks 4 --ep 4 --zero 2 --micro-batch 2 --recompute selective
        same "$name $dtype" --ranks 2 --ep 2 --zero 1 --micro-batch 4
        same "$name $dtype" --tp 2 --ep 2 --micro-batch 2 --recompute full
        same "$name $dtype" --tp 2 --ep 4 --ranks 4 --zero 1 --micro-batch 1 --recompute selective --overlap \
            on
        same "$name $dtype" --tp 2 --ep 4 --ranks 8 --zero 2 --sp
        same "$name $dtype" --tp 2 --ep 2 --ranks 8 --zero 3 --sp --micro-batch 1
        same "$name $dtype" --tp 4 --ep 4 --sp --threads 2
        same "$name $dtype" --tp 4 --ranks 8 --zero 1 --recompute full
        same "$name $dtype" --tp 4 --sp --micro-batch 4 --recompute selective
        same "$name $dtype" --pp 2 --ep 2 --ranks 4 --schedule 1f1b --micro-batch 1 --zero 1
        same "$name $dtype" --pp 2 --ep 4 --ranks 8 --schedule gpipe --micro-batch 2
        same "$name $dtype" --pp 2 --tp 2 --ep 2 --schedule zero-bubble --micro-batch 2 --sp
        same "$name $dtype" --pp 2 --tp 2 --schedule zero-bubble --recompute full --micro-batch 1
        same "$name $dtype" --pp 2 --tp 4 --ep 4 --ranks 8 --micro-batch 4 --recompute selective
        same "$name $dtype" --pp 2 --ep 2 --ranks 4 --schedule zero-bubble --micro-batch 2 --recompute \
            selective --zero 2
        SHARDLINE_TRANSPORT=mpi same "$name $dtype, mpi" --tp 2 --ep 4 --ranks 4 --zero 3
        for leaf in 2 4; do
            common+=(--expert-leaf $leaf)
            reference
            same "$name $dtype, $leaf sequences a leaf" --ranks 8 --ep 4 --zero 1 --micro-batch 1
            same "$name $dtype, $leaf sequences a leaf" --tp 2 --ep 4 --ranks 4 --zero 3 --micro-batch 2 \
                --sp --recompute full
            same "$name $dtype, $leaf sequences a leaf" --tp 2 --pp 2 --micro-batch 4 --schedule zero-bubble
            same "$name $dtype, $leaf sequences a leaf" --ranks 2 --zero 2 --micro-batch 4 --recompute \
                selective --threads 2
        done
    done
done
finish
