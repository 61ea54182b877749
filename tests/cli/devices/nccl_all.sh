#!/usr/bin/env bash
# all
# nccl_all.sh - more of nccl.sh: stages, layouts, dtypes and families over NCCL, faults at many calls,
# generation.
. "$(dirname "$0")/../lib/nccl_cases.bash"

reference
for zero in 0 1 2 3; do
    here "ZeRO-$zero over four" --ranks 4 --zero $zero
    here "ZeRO-$zero with tp and micro-batches" --ranks 4 --tp 2 --zero $zero --micro-batch 1
done
here "nothing overlapped" --ranks 4 --zero 3 --overlap off
here "two machines" --ranks 4 --tp 2 --ranks-per-node 2 --zero 2
here "zero-bubble" --ranks 4 --pp 2 --micro-batch 1 --schedule zero-bubble --zero 1
here "saved behind training" --ranks 2 --zero 2 --save-async --save-every 1
common=(--data "$TMP/text" --model "$TMP/gqa.json" --steps 2 --seq-len 64 --global-batch 8 --threads 1)
reference
here "sequence parallel" --ranks 4 --tp 4 --sp
for name in gpt2 qwen2; do
    family "$TMP/model.json" $name
    common=(--data "$TMP/text" --model "$TMP/model.json" --steps 2 --seq-len 63 --global-batch 8 --threads 1 \
        --dtype bf16)
    reference
    here "$name in bf16, tp" --tp 4
    here "$name in bf16, ZeRO-3" --ranks 4 --zero 3
done
run pserve "$TMP/reference/step-2" --once "12 13 14" --max-tokens 9 --temperature 0 --device cpu
cpu=$out
on_gpus run pserve "$TMP/reference/step-2" --once "12 13 14" --max-tokens 9 --temperature 0 --device cuda \
    --tp 2 --transport nccl
claim "pserve over NCCL says what it says on the CPU" [ "$out" = "$cpu" ]

for name in qwen2_moe deepseek_v3 mixtral; do
    for dtype in fp32 bf16; do
        experts $name --dtype $dtype
        here "$name $dtype: rows of experts, ZeRO-3" --ranks 4 --ep 2 --zero 3 --micro-batch 1
        here "$name $dtype: rows of experts, nothing overlapped" --ranks 4 --ep 4 --zero 1 --overlap off
        here "$name $dtype: rows of experts in rounds" --tp 2 --ep 4 --ranks 4 --expert-buffer 0.1
        here "$name $dtype: rows of experts, late weight gradients" --pp 2 --ep 2 --ranks 4 --micro-batch 2 \
            --schedule zero-bubble
        on_gpus same "$name $dtype: rows of experts through the host" --device cuda --transport shm --tp 2 \
            --ep 4 --ranks 4
    done
done
for call in 1 2 3 4 5 6; do
    fault "an exchange of rows: killed at call $call" kill:1:$call 10 "rank 1 died" --ranks 2 --ep 2
    fault "an exchange of rows: an error of the library's threads at call $call" async:0:$call 10 ": NCCL: " \
        --ranks 2 --ep 2
    fault "an exchange of rows: refused at call $call" refuse:1:$call 10 "internal error" --ranks 2 --ep 2
done

config "$TMP/gqa.json"
common=(--data "$TMP/text" --model "$TMP/gqa.json" --steps 3 --seq-len 63 --global-batch 8 --threads 1)
for call in 1 2 3 7 20; do
    fault "killed at call $call" kill:1:$call 10 "rank 1 died" --ranks 2 --zero 3
    fault "an error of the library's threads at call $call" async:0:$call 10 ": NCCL: " --ranks 4 --tp 2 \
        --zero 1
    fault "refused at call $call" refuse:1:$call 10 "internal error" --ranks 2
    fault "stays away behind call $((2 * call))" stay:1:$((2 * call)) 12 "rank 1 did not enter" --tp 2 \
        --rank-timeout 2
done
finish
