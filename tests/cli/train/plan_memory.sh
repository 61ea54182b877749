#!/usr/bin/env bash
# all
# plan_memory.sh - the peak that every rank's tracked allocator saw, beside what --dry-run plans for the
# fullest rank: within 5 % in both directions, in all and by category (a category of less than 2 % of the
# whole: within 2 % of that), for twenty-five layouts of a dense model, nine that divide its sequences, and
# twenty-two of a mixture of experts, seven of them with sequences cut into leaves (--cp-grain, --cp).
. "$(dirname "$0")/../lib/plan_lib.bash"
text 1 40000 >"$TMP/text"
config "$TMP/model.json" hidden_size=256 num_hidden_layers=8 num_attention_heads=8 num_key_value_heads=4 \
    head_dim=32 intermediate_size=704 vocab_size=8192
common=(--data "$TMP/text" --model "$TMP/model.json" --steps 1 --seq-len 128 --global-batch 8 --threads 1)

compare_layouts <<'LAYOUTS'
--ranks 1
--ranks 2
--ranks 4 --zero 1
--ranks 4 --zero 2
--ranks 4 --zero 3
--ranks 4 --zero 3 --overlap off
--ranks 2 --zero 2 --micro-batch 1
--tp 4
--pp 4 --micro-batch 1 --schedule gpipe
--pp 4 --micro-batch 1
--pp 2 --micro-batch 1 --schedule zero-bubble
--pp 2 --micro-batch 1 --schedule zero-bubble --recompute full
--pp 2 --micro-batch 1 --schedule interleaved --virtual-stages 2
--ranks 1 --recompute selective
--ranks 1 --recompute full
--ranks 2 --dtype bf16
--pp 2 --tp 2 --ranks 8 --zero 3 --micro-batch 1 --dtype bf16
--offload DISK
--offload DISK --dtype bf16 --ranks 2 --zero 1
--offload DISK --dtype bf16 --zero 3 --micro-batch 2 --offload-grads --offload-params
--offload DISK --ranks 4 --zero 3 --micro-batch 1 --offload-grads --offload-params
--offload DISK --recompute full --offload-activations --micro-batch 2
--offload DISK --recompute full --offload-activations --pp 2 --micro-batch 1 --schedule zero-bubble
--publish 127.0.0.1:0 --steps 2
--publish 127.0.0.1:0 --steps 2 --publish-copy --ranks 4 --zero 1 --dtype bf16
LAYOUTS

# to the byte: the newest version and the next one, as long as the weights of the fullest rank's file
data_bytes() { echo $(($(stat -c %s "$1") - 8 - $(od -An -t u8 -N 8 "$1"))); }
for layout in "--ranks 2 --zero 1 --dtype bf16" "--ranks 2 --zero 3"; do # the fullest rank is the first one
    read -r -a words <<<"$layout"
    train one "${words[@]}" --publish 127.0.0.1:0
    claim "$layout --publish: two copies of a rank's weights, to the byte" \
        [ "$(measured one save)" = $((2 * $(data_bytes "$TMP/one/step-1/weights-00000.safetensors"))) ]
done

# sequences that ranks divide: activations are most of the memory
config "$TMP/model.json" hidden_size=256 num_hidden_layers=4 num_attention_heads=8 num_key_value_heads=4 \
    head_dim=32 intermediate_size=704 vocab_size=2048 max_position_embeddings=2048
dense=("${common[@]}")
common=(--data "$TMP/text" --model "$TMP/model.json" --steps 1 --seq-len 2048 --global-batch 2 --threads 1
    --micro-batch 1 --cp-grain 8)
compare_layouts <<'LAYOUTS'
--ranks 1
--cp 2
--cp 4
--cp 4 --zero 3
--cp 2 --ranks 4 --zero 2 --dtype bf16
--cp 2 --tp 2 --sp
--cp 2 --tp 8
--cp 2 --pp 2 --schedule zero-bubble
--cp 2 --recompute full
LAYOUTS
common=("${dense[@]}")
for cp in 2 4; do
    claim "cp $cp: a rank keeps 1/$cp of the activations, within 5 %" awk -v a="${acts["--cp $cp"]}" \
        -v b="${acts["--ranks 1"]}" -v n=$cp 'BEGIN { exit !(a * n > 0.95 * b && a * n < 1.05 * b) }'
done

echo '{"model_type":"qwen2_moe","hidden_size":256,"num_hidden_layers":4,"num_attention_heads":8,"num_key_value_heads":4,"head_dim":32,"intermediate_size":704,
"vocab_size":2048,"num_experts":8,"num_experts_per_tok":2,"moe_intermediate_size":176,"shared_expert_intermediate_size":352}' >"$TMP/model.json"
compare_layouts <<'LAYOUTS'
--ranks 1
--tp 2
--ranks 2 --ep 2
--ranks 4 --ep 4 --zero 1
--ranks 4 --ep 4 --zero 3 --micro-batch 1
--ranks 4 --ep 2 --zero 2
--ranks 8 --ep 4 --zero 1
--tp 2 --ep 4 --ranks 4 --zero 3
--tp 2 --sp --ep 4 --ranks 4
--ranks 2 --ep 2 --recompute full
--ranks 4 --ep 4 --recompute selective --dtype bf16
--pp 2 --ep 2 --ranks 4 --micro-batch 1 --schedule zero-bubble
--ranks 8 --ep 8
--ranks 8 --ep 8 --zero 3 --recompute full --expert-buffer 1
--pp 2 --ep 4 --ranks 8 --micro-batch 2 --schedule zero-bubble --expert-buffer 1
LAYOUTS

# sequences of four leaves
common+=(--seq-len 512 --global-batch 4 --cp-grain 4)
compare_layouts <<'LAYOUTS'
--ranks 1 --micro-batch 1
--cp 2
--cp 4 --ep 4 --zero 1
--cp 2 --ep 4 --ranks 4 --zero 3 --recompute full
--cp 2 --ep 2 --ranks 4 --zero 2 --recompute selective --dtype bf16
--cp 2 --tp 2 --sp --ep 4 --ranks 4 --expert-buffer 1
--cp 2 --pp 2 --ep 2 --schedule zero-bubble --expert-buffer 1
LAYOUTS
common=("${common[@]::${#common[@]}-6}")

# 8 experts on 8 ranks: every rank lacks 7 of 8 moments and gradients, fp32 (4 layers, 3 matrices an expert)
experts=$((4 * 8 * 3 * 256 * 176))
train one
for cat in optim grads; do eval "all_$cat=$(measured one $cat)"; done
train one --ranks 8 --ep 8
near_to() { awk -v a="$1" -v b="$2" 'BEGIN { exit !(a > 0.99 * b && a < 1.01 * b) }'; }
claim "ep 8 on 8 ranks: a rank has 1/8 of the experts' moments" near_to \
    $((all_optim - $(measured one optim))) $((experts * 7 / 8 * 8))
claim "and of their gradients" near_to $((all_grads - $(measured one grads))) $((experts * 7 / 8 * 4))
finish
