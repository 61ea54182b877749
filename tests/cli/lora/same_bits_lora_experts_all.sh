#!/usr/bin/env bash
# all
# same_bits_lora_experts_all.sh - adapters beside frozen experts and of experts: cut by tp, whole on ranks of tp and dp,
# in one round and in several, with deferred gradients and recomputation, ZeRO 1 to 3. The same losses, norms and digests.
. "$(dirname "$0")/../lib/train_lib.bash"
text 3 60000 >"$TMP/text"

while read -r f targets; do
    family "$TMP/model.json" "$f"
    sed -i 's/"num_hidden_layers":2/"num_hidden_layers":5/' "$TMP/model.json" # more than ZeRO 3 has slots
    rm -rf "$TMP/base"
    run "$BIN/ptrain" --data "$TMP/text" --model "$TMP/model.json" --steps 1 --seq-len 16 --global-batch 1 \
        --threads 1 --out "$TMP/base"
    claim "$f: a base" [ $rc = 0 ]
    common=(--data "$TMP/text" --init "$TMP/base/step-1" --lora "r=3,alpha=7,targets=$targets" --steps 3 \
        --seq-len 32 --global-batch 4 --threads 1)
    reference
    while read -r -a layout; do
        same "$f" "${layout[@]}"
    done <<'LAYOUTS'
--tp 2 --ranks 4 --zero 2
--ep 2 --ranks 2 --zero 1
--ep 2 --ranks 4 --zero 2 --recompute full
--tp 2 --ep 2
--tp 2 --ep 4 --ranks 4 --zero 1
--ep 2 --ranks 2 --zero 2 --expert-buffer 1 --micro-batch 2
--ep 4 --ranks 4 --zero 1 --expert-buffer 1 --recompute selective
--pp 2 --ep 2 --ranks 4 --micro-batch 1 --schedule zero-bubble --expert-buffer 1
--ep 2 --ranks 2 --zero 3 --expert-buffer 1
--ep 2 --ranks 4 --zero 3 --expert-buffer 1 --recompute full --micro-batch 1
LAYOUTS
done <<'FAMILIES'
mixtral q_proj,v_proj
mixtral q_proj,k_proj,v_proj,o_proj,w1,w2,w3
qwen2_moe all-linear,gate_proj,up_proj,down_proj
FAMILIES

# leaves of sequences, with ranks of cp among those that divide the experts
common=(--data "$TMP/text" --init "$TMP/base/step-1" --lora "r=3,alpha=7,targets=q_proj,gate_proj,up_proj,down_proj" \
    --steps 2 --seq-len 256 --global-batch 4 --threads 1 --cp-grain 2)
reference
same "leaves" --cp 2 --ep 2
same "leaves, in rounds" --cp 2 --ep 4 --ranks 4 --zero 3 --expert-buffer 0.5 --recompute full
finish
