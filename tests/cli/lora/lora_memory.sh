#!/usr/bin/env bash
# all
# lora_memory.sh - what a run with an adapter takes, beside what --dry-run plans (plan_lib.bash): within 5 %, in
# all and by category. Frozen weights take 4 bytes a parameter at most (bf16 with --zero 3: 2), and the
# adapter's own state is small.
. "$(dirname "$0")/../lib/plan_lib.bash"
text 1 40000 >"$TMP/text"
config "$TMP/model.json" hidden_size=256 num_hidden_layers=8 num_attention_heads=8 num_key_value_heads=4 \
    head_dim=32 intermediate_size=704 vocab_size=8192
run "$BIN/ptrain" --data "$TMP/text" --model "$TMP/model.json" --steps 1 --seq-len 16 --global-batch 1 --out \
    "$TMP/base"
claim "a base" [ $rc = 0 ] || finish
common=(--data "$TMP/text" --init "$TMP/base/step-1" --lora r=8,alpha=16,targets=all-linear --steps 1 \
    --seq-len 128 --global-batch 8 --threads 1)

compare_layouts <<'LAYOUTS'
--ranks 1
--ranks 1 --dtype bf16
--ranks 1 --dtype bf16 --zero 3
--ranks 1 --micro-batch 1 --recompute full
--ranks 4 --zero 1
--ranks 4 --zero 2 --dtype bf16
--ranks 4 --zero 3
--tp 4
--tp 2 --sp --ranks 4 --zero 3 --micro-batch 2
--pp 2 --micro-batch 1
--pp 2 --tp 2 --micro-batch 2 --schedule zero-bubble --dtype bf16
LAYOUTS

# adapters of experts that ep divides
echo '{"model_type":"mixtral","hidden_size":128,"num_hidden_layers":4,"num_attention_heads":8,"num_key_value_heads":4,"head_dim":16,"intermediate_size":352,"vocab_size":4096,"max_position_embeddings":256,"num_local_experts":8,"num_experts_per_tok":2}' >"$TMP/experts.json"
run "$BIN/ptrain" --data "$TMP/text" --model "$TMP/experts.json" --steps 1 --seq-len 16 --global-batch 1 --out \
    "$TMP/experts"
claim "a base with experts" [ $rc = 0 ] || finish
dense=("${common[@]}")
common=(--data "$TMP/text" --init "$TMP/experts/step-1" --lora r=8,alpha=16,targets=all-linear,w1,w2,w3 --steps 1 \
    --seq-len 128 --global-batch 8 --threads 1)
compare_layouts <<'LAYOUTS'
--ep 2 --ranks 2 --zero 1
--tp 2 --ep 2 --recompute full --dtype bf16
--ep 4 --ranks 4 --zero 3 --expert-buffer 1 --micro-batch 2
--pp 2 --ep 2 --ranks 4 --micro-batch 2 --schedule zero-bubble --expert-buffer 1 --dtype bf16
LAYOUTS
common=("${dense[@]}")

# frozen BYTES ARGS...: params of one rank are no more than so many a frozen parameter, and 4 an adapter's
frozen() {
    local numbers
    train one "${@:2}"
    numbers=$(head -n 1 "$TMP/one.jsonl" |
        sed -n 's/.*"parameters":\([0-9]*\).*"trained_parameters":\([0-9]*\).*/\1 \2/p')
    read -r model adapter <<<"$numbers"
    claim "${*:2}: $(measured one params) bytes of weights for $numbers parameters" \
        [ "$(measured one params)" -le $((model * $1 * 101 / 100 + adapter * 10)) ]
    claim "${*:2}: $(measured one optim) bytes of state for $adapter" \
        [ "$(measured one optim)" -le $((adapter * 13)) ]
}
frozen 4 --ranks 1
frozen 4 --ranks 1 --dtype bf16
frozen 2 --ranks 1 --dtype bf16 --zero 3
finish
