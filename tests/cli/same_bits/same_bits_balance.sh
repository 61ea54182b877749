#!/usr/bin/env bash
# quick long
# same_bits_balance.sh - --balance global and bias give the bits of one rank: a sample of layouts
# (same_bits_balance_all.sh has the others). Counts and biases are saved, resumed and resharded at other
# layouts.
. "$(dirname "$0")/../lib/train_lib.bash"
text 4 60000 >"$TMP/text"
steps=4

# middle BALANCE: two steps at one layout, then the rest at others, with and without a reshard between
middle() {
    train half --stop-after 2 --ranks 4 --ep 4 --zero 1 --micro-batch 1
    claim "$1: two steps at ep 4" [ $rc = 0 ]
    rm -rf "$TMP/rest"
    run "$BIN/ptrain" --data "$TMP/text" --out "$TMP/rest" --resume "$TMP/half/step-2" --threads 1
    claim "$1: resumed on one rank, with the options of the run, it ends in the same state" [ \
        "$(state_of "$out")" = "$ref_state" ]
    run reshard --tp 2 --pp 2 --dp 2 --zero 3 "$TMP/half/step-2" "$TMP/cut"
    claim "$1: resharded" [ $rc = 0 ]
    run reshard diff "$TMP/half/step-2" "$TMP/cut"
    claim "$1: a reshard changes nothing" [ $rc = 0 ]
    train rest --resume "$TMP/cut" --ranks 4 --pp 2 --zero 1 --micro-batch 2
    claim "$1: and resumed at another layout" [ "$state" = "$ref_state" ]
    rm -rf "$TMP/cut"
}

family "$TMP/model.json" mixtral
common=(--data "$TMP/text" --model "$TMP/model.json" --steps "$steps" --seq-len 33 --global-batch 8 \
    --threads 1 --balance global --balance-rate 0.3)
train sequence --balance sequence
sequence=$state
reference
claim "the loss of global counts is not that of a sequence's" [ "$state" != "$sequence" ]
same "global: micro-batches" --micro-batch 1
same "global: experts cut by tp, ZeRO-3" --tp 2 --ranks 4 --zero 3 --micro-batch 2
same "global: an expert group over dp ranks, late weight gradients" --tp 2 --ep 4 --pp 2 --ranks 8 \
    --schedule zero-bubble --micro-batch 1
middle global
run reshard inspect "$TMP/half/step-2"
claim "inspect names the counts" grep -q 'counts  *of the last step: 2 layers of 8 experts' <<<"$out"
grep -q '"must_understand":\["expert_counts"\]' "$TMP/half/step-2/manifest.json"
claim "the manifest names the feature" [ $? = 0 ]
sed -i 's/"expert_counts":\[\[[0-9]*/"expert_counts":[[99/' "$TMP/half/step-2/manifest.json"
run reshard verify "$TMP/half/step-2"
claim "another count is found" [ $rc = 1 ]
rm -rf "$TMP/half"

family "$TMP/model.json" deepseek_v3
common=(--data "$TMP/text" --model "$TMP/model.json" --steps "$steps" --seq-len 33 --global-batch 8 \
    --threads 1 --dtype bf16)
reference
none=$state
common+=(--balance bias --balance-rate 0.02)
reference
claim "a bias that moves changes the run" [ "$state" != "$none" ]
same "bias: micro-batches" --micro-batch 1
same "bias: experts on four ranks, ZeRO-2" --ep 4 --ranks 4 --zero 2 --micro-batch 2
same "bias: cut by tp, late weight gradients" --pp 2 --tp 2 --ranks 4 --schedule zero-bubble --micro-batch 2
middle bias

refused() {
    run "$BIN/ptrain" "${common[@]}" --out "$TMP/refused" "${@:2}"
    claim "refused, in one line: ${*:2}" [ "$rc/$(wc -l <"$TMP/.err")" = 2/1 ] &&
        claim "${*:2}: says why" grep -q -- "$1" "$TMP/.err"
}
family "$TMP/mixtral.json" mixtral
refused "no correction bias" --model "$TMP/mixtral.json"
family "$TMP/oss.json" gpt_oss
refused "no correction bias" --model "$TMP/oss.json"
config "$TMP/dense.json"
refused "this model has no experts" --model "$TMP/dense.json"
refused "this model has no experts" --model "$TMP/dense.json" --balance global
finish
