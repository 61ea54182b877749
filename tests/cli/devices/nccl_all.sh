#!/usr/bin/env bash
# all
# nccl_all.sh - more of nccl.sh: stages, layouts, dtypes and families over NCCL, faults at many calls, generation.
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
    common=(--data "$TMP/text" --model "$TMP/model.json" --steps 2 --seq-len 63 --global-batch 8 --threads 1 --dtype bf16)
    reference
    here "$name in bf16, tp" --tp 4
    here "$name in bf16, ZeRO-3" --ranks 4 --zero 3
done
run pserve "$TMP/reference/step-2" --once "12 13 14" --max-tokens 9 --temperature 0 --device cpu
cpu=$out
on_gpus run pserve "$TMP/reference/step-2" --once "12 13 14" --max-tokens 9 --temperature 0 --device cuda --tp 2 --transport nccl
claim "pserve over NCCL says what it says on the CPU" [ "$out" = "$cpu" ]

config "$TMP/gqa.json"
common=(--data "$TMP/text" --model "$TMP/gqa.json" --steps 3 --seq-len 63 --global-batch 8 --threads 1)
for call in 1 2 3 7 20; do
    fault "killed at call $call" kill:1:$call 10 "rank 1 died" --ranks 2 --zero 3
    fault "an error of the library's threads at call $call" async:0:$call 10 ": NCCL: " --ranks 4 --tp 2 --zero 1
    fault "refused at call $call" refuse:1:$call 10 "internal error" --ranks 2
    fault "stays away behind call $((2 * call))" stay:1:$((2 * call)) 12 "rank 1 did not enter" --tp 2 --rank-timeout 2
done
finish
