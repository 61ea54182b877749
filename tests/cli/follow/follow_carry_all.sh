#!/usr/bin/env bash
# all
# follow_carry_all.sh - follow_carry.sh with windows, experts, latent attention, positions that are learned, bf16, drafts,
# an adapter, replicas; and layouts that carry nothing over.
. "$(dirname "$0")/../lib/train_lib.bash"
. "$(dirname "$0")/../lib/serve_lib.bash"

# carried NAME FAMILY DTYPE PSERVE-OPTION...
carried() {
    local dtype=$3 more=()
    [ "$2" != deepseek_v3 ] || more=(--balance bias --balance-rate 0.1)
    what="$2 ${*:4}"
    local model=$TMP/model.json
    family "$model" "$2"
    sed -i 's/"max_position_embeddings":256/"max_position_embeddings":2048/; s/"n_positions":70/"n_positions":4096/' "$model"
    [ "$2" != tiny ] || model=tiny
    rm -rf "$TMP/run"
    trained --model "$model" --dtype "$dtype" --steps 3 --save-every 1 --lr 1e-2 "${more[@]}"
    asked follow_carry.py "$TMP" "$1" --dtype "$dtype" --threads 1 "${@:4}"
}

carried many mistral fp32 --tp 1
carried many gemma2 bf16 --tp 2
carried many gpt_oss fp32 --tp 2 --ep 2
carried many qwen2_moe fp32 --tp 1 --prefill-chunk 7
carried many deepseek_v3 bf16 --tp 2
carried many gpt2 fp32 --tp 1
carried many tiny bf16 --tp 4 --speculate ngram
carried many tiny fp32 --replicas 2 --kv-disk "$TMP/pages:20M"
carried none tiny fp32 --cp 2
carried none tiny fp32 --pp 2

what="an adapter"
run ptrain --data "$TMP/text" --init "$TMP/run/step-1" --lora r=4,alpha=8,targets=all-linear,init=gaussian \
    --out "$TMP/lora" --steps 2 --lr 1e-2 --seq-len 64 --global-batch 4
claim "an adapter is trained" [ $rc = 0 ]
ADAPTER=$TMP/lora/step-2 asked follow_carry.py "$TMP" many --tp 2 --lora "a=$TMP/lora/step-2"
finish
