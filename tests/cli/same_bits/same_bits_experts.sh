#!/usr/bin/env bash
# quick long
# same_bits_experts.sh - mixtures of experts give the bits of one rank, whole or cut by tp, divided by ep: a
# sample (same_bits_experts_all.sh has the pairs); saved at one ep and resumed at another; layouts that are
# refused.
. "$(dirname "$0")/../lib/train_lib.bash"
text 4 60000 >"$TMP/text"
steps=${SAME_BITS_STEPS:-3}

family "$TMP/model.json" qwen2_moe
common=(--data "$TMP/text" --model "$TMP/model.json" --steps "$steps" --seq-len 63 --global-batch 8 \
    --threads 1)
reference
same "experts cut by tp, a shared expert, ZeRO-3" --tp 2 --ranks 4 --zero 3 --micro-batch 1
same "six experts on four ranks, ZeRO-1" --ep 4 --ranks 4 --zero 1 --micro-batch 1
same "an expert group of tp ranks, another one beside it" --tp 2 --ep 2 --ranks 4 --zero 2 --micro-batch 2
same "an expert group over dp ranks, late weight gradients" --tp 2 --ep 4 --pp 2 --ranks 8 --schedule \
    zero-bubble --micro-batch 1

# every token takes every expert: the copies that late gradients take are all that was planned
sed -i 's/"num_experts":6/"num_experts":2/; s/"num_experts_per_tok":3/"num_experts_per_tok":2/' "$TMP/model.json"
common=(--data "$TMP/text" --model "$TMP/model.json" --steps 2 --seq-len 64 --global-batch 8 --threads 1)
reference
same "all rows on every rank, late weight gradients, layers computed again" --tp 2 --ep 2 --pp 2 --sp --ranks 4 \
    --micro-batch 0 --schedule zero-bubble --recompute full

family "$TMP/model.json" qwen3_moe
common=(--data "$TMP/text" --model "$TMP/model.json" --steps "$steps" --seq-len 64 --global-batch 8 \
    --threads 1 --dtype bf16)
reference
same "bf16: a stage without experts" --pp 2 --micro-batch 4
same "bf16: shares of every sequence, layers computed again" --tp 2 --sp --ep 4 --ranks 4 --zero 3 \
    --recompute full

family "$TMP/model.json" deepseek_plain
common=(--data "$TMP/text" --model "$TMP/model.json" --steps "$steps" --seq-len 64 --global-batch 8 \
    --threads 1)
reference
same "latent attention, q not compressed: one head a rank" --tp 8
family "$TMP/model.json" deepseek_v3
reference
same "latent attention: shares of every sequence, late weight gradients" --pp 2 --tp 2 --sp --ranks 4 \
    --micro-batch 2 --schedule zero-bubble --recompute full
common+=(--dtype bf16)
reference
same "latent attention in bf16, a group of experts over dp ranks, ZeRO-3" --tp 2 --ep 4 --ranks 4 --zero 3 \
    --micro-batch 1

train half --stop-after 2 --tp 2 --ep 4 --ranks 4 --zero 1
claim "two steps at ep 4" [ $rc = 0 ]
run "$BIN/ptrain" --data "$TMP/text" --out "$TMP/rest" --resume "$TMP/half/step-2" --threads 1
claim "resumed on one rank, it ends in the same state" [ "$(state_of "$out")" = "$ref_state" ]
run reshard --ep 4 --dp 4 --zero 3 "$TMP/half/step-2" "$TMP/cut"
claim "resharded to experts on four ranks" [ $rc = 0 ]
train rest --resume "$TMP/cut" --ranks 2 --ep 2
claim "and resumed on two" [ "$state" = "$ref_state" ]
portable "bf16: portable C" --tp 2

common+=(--balance sequence --balance-rate 0.1 --z-loss 0.01)
reference
same "with the router's losses" --tp 2 --ep 4 --ranks 4 --zero 1 --micro-batch 2
claim "the log has the load of every layer with experts" grep -q '"expert_load":\[[0-9.]*\],' \
    "$TMP/layout.jsonl"

# --expert-leaf: several sequences a leaf, which belong to several dp ranks with ep
family "$TMP/model.json" mixtral
common=(--data "$TMP/text" --model "$TMP/model.json" --steps "$steps" --seq-len 31 --global-batch 8 \
    --threads 1)
reference
plain_state=$ref_state
common+=(--expert-leaf 2)
reference
claim "two sequences a leaf are another order" [ "$ref_state" != "$plain_state" ]
same "two sequences a leaf, of two dp ranks" --ranks 4 --ep 2 --zero 1 --micro-batch 1
same "two sequences a leaf, experts cut by tp" --tp 2 --pp 2 --zero 2 --micro-batch 2 --schedule zero-bubble
claim "the log names the order" grep -q '"event":"orders".*"expert_leaf":2' "$TMP/layout.jsonl"
common[-1]=4
reference
same "four sequences a leaf, of four dp ranks, ZeRO-3" --ranks 4 --ep 4 --zero 3 --micro-batch 1
same "four sequences a leaf, of a group of tp ranks" --tp 2 --ep 4 --ranks 4 --zero 1 --micro-batch 2 \
    --recompute full
train half --stop-after 2 --ranks 4 --ep 4
run reshard "$TMP/half/step-2" "$TMP/leaf"
claim "the order is resharded" grep -q '"orders":{"expert_leaf":4}' "$TMP/leaf/manifest.json"
run "$BIN/ptrain" --data "$TMP/text" --out "$TMP/rest2" --resume "$TMP/leaf" --threads 1
claim "a resumed run keeps its order" [ "$(state_of "$out")" = "$ref_state" ]

family "$TMP/model.json" gpt_oss
common=(--data "$TMP/text" --model "$TMP/model.json" --steps "$steps" --seq-len 63 --global-batch 8 \
    --threads 1)
reference
same "biases of experts, sinks: cut by tp 8, ZeRO-1" --tp 8 --ranks 8 --zero 1 --micro-batch 2
same "six experts on four ranks, an expert group over dp ranks" --tp 2 --ep 4 --ranks 4 --zero 1 \
    --micro-batch 1
same "late weight gradients of layers computed again" --pp 2 --tp 2 --ranks 4 --micro-batch 2 --schedule \
    zero-bubble --recompute full
common=(--data "$TMP/text" --model "$TMP/model.json" --steps "$steps" --seq-len 64 --global-batch 8 \
    --threads 1 --dtype bf16)
reference
same "bf16: shares of every sequence" --tp 2 --sp --ep 4 --ranks 4 --zero 3 --recompute selective
same "bf16: ZeRO-3, two threads" --ranks 4 --zero 3 --micro-batch 1 --threads 2
portable "bf16: portable C" --tp 2

refused() {
    run "$BIN/ptrain" "${common[@]}" --out "$TMP/refused" "${@:2}"
    claim "refused, in one line: ${*:2}" [ "$rc/$(wc -l <"$TMP/.err")" = 2/1 ] &&
        claim "${*:2}: says why" grep -q -- "$1" "$TMP/.err"
}
refused "an expert group is tp x cp = 1 ranks times a divisor of dp 2" --ep 3 --ranks 2
refused "an expert group is tp x cp = 2 ranks times a divisor of dp 1" --tp 2 --ep 4
refused "for 6 experts" --ep 16 --ranks 16 --global-batch 16 --dry-run
config "$TMP/dense.json"
refused "this model has no experts" --model "$TMP/dense.json" --ep 2 --ranks 2
refused "this model has no experts" --model "$TMP/dense.json" --z-loss 0.1
refused "this model has no experts" --model "$TMP/dense.json" --expert-leaf 2
refused "is no power of two" --expert-leaf 3
refused "does not divide the 4 sequences of a micro-step" --expert-leaf 8 --micro-batch 2 --ranks 4 --ep 2
refused "was trained with 4, which cannot change" --model "$TMP/leaf/config.json" --resume "$TMP/leaf" \
    --expert-leaf 2
finish
