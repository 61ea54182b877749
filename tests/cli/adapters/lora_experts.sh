#!/usr/bin/env bash
# all
# lora_experts.sh - adapters of experts: trained to the same bits in other layouts, served as the merged model
# is, whether experts are tensors of their own or stand in one, in the other orientation and alternating.
. "$(dirname "$0")/../lib/train_lib.bash"
here=$(cd "$(dirname "$0")" && pwd) python=${PYTHON:-python3}
text 3 60000 >"$TMP/text"
for name in qwen2_moe gpt_oss; do
    family "$TMP/$name.json" $name
    sed -i 's/"vocab_size":701/"vocab_size":256/' "$TMP/$name.json"
    run ptrain --data "$TMP/text" --model "$TMP/$name.json" --steps 2 --seq-len 32 --global-batch 2 --threads 1 --out "$TMP/$name"
    claim "$name is trained" [ $rc = 0 ]
    run reshard --format hf "$TMP/$name/step-2" "$TMP/$name-hf"
done

# merged FOLDER ADAPTER: completions with the adapter are those of the merged folder
merged() {
    local want
    run reshard --format hf --merge "$2" "$1" "$2-merged"
    run pserve "$1" --once "the model" --max-tokens 24 --threads 1
    want=$out
    run pserve "$2-merged" --once "the model" --max-tokens 24 --threads 1
    claim "$2 changes the answer" [ $rc = 0 -a "$out" != "$want" ]
    want=$out
    for layout in "--tp 1" "--tp 2" "--tp 4" "--tp 2 --ep 2" "--tp 2 --cp 2 --ep 4"; do
        run pserve "$1" --lora a="$2" --once "the model" --max-tokens 24 --threads 1 $layout
        claim "with $2 at $layout the answer is that of the merged model" [ $rc = 0 -a "$out" = "$want" ]
    done
}

common=(--data "$TMP/text" --init "$TMP/qwen2_moe/step-2" --lora r=4,alpha=6,targets=gate_proj,up_proj,down_proj,q_proj
    --steps 3 --lr 0.05 --seq-len 64 --global-batch 4 --threads 1)
reference
same "experts cut, slices of A and B" --tp 2 --ranks 4 --zero 3
same "stages, shared tokens, layers computed again, late gradients" --tp 2 --sp --pp 2 --micro-batch 1 --recompute full \
    --schedule zero-bubble
same "whole experts, in rounds, late gradients" --ep 2 --ranks 4 --pp 2 --micro-batch 1 --schedule zero-bubble --expert-buffer 1
train halfway --ep 2 --ranks 2 --stop-after 2
mv "$TMP/halfway" "$TMP/kept"
claim "a run of whole experts is saved" [ $rc = 0 ]
train layout --resume "$TMP/kept/step-2" --tp 2 --ep 2
claim "whole experts, resumed on other ranks" [ $rc = 0 -a "$state" = "$ref_state" ]
cp -r "$TMP/reference/step-3" "$TMP/trained"
merged "$TMP/qwen2_moe-hf" "$TMP/trained"

run "$python" -B "$here/experts_adapters.py" "$TMP/gpt_oss-hf" "$TMP/fused"
claim "an adapter of experts in one tensor is made" [ $rc = 0 ]
merged "$TMP/gpt_oss-hf" "$TMP/fused"
finish
