#!/usr/bin/env bash
# quick
# context_experts.sh - mixtures of experts whose sequences are cut into leaves give the bits of one rank, with the experts divided
# among ranks that divide the leaves (--ep with --cp): a sample (pairs_context.sh has the pairs).
. "$(dirname "$0")/../lib/train_lib.bash"
text 6 60000 >"$TMP/text"

family "$TMP/model.json" qwen2_moe
common=(--data "$TMP/text" --model "$TMP/model.json" --steps 2 --seq-len 256 --global-batch 4 --threads 1 --cp-grain 2)
reference
same "leaves of one rank's sequences, experts over dp ranks" --ranks 2 --ep 2 --micro-batch 2
same "experts over cp ranks" --cp 2 --ep 2
same "experts over cp and dp ranks, in rounds, ZeRO-3" --cp 2 --ep 4 --ranks 4 --zero 3 --expert-buffer 0.5 --recompute full
run "$BIN/ptrain" "${common[@]}" --cp 2 --ep 4 --ranks 4 --dry-run
claim "the plan says the rows of a leaf" grep -q "^expert rows .*, 64 a leaf of" <<<"$out"
claim "and those that one can bring to a rank" grep -q "the most of 1 leaf: 256$" <<<"$out"
same "experts over cp and tp ranks, shares, late weight gradients" --cp 2 --tp 2 --sp --ep 4 --pp 2 --schedule zero-bubble
common+=(--balance sequence --balance-rate 0.1 --z-loss 0.01)
reference
same "counts of a sequence, of several ranks" --cp 2 --ranks 4 --zero 1

config "$TMP/model.json"
common=(--data "$TMP/text" --model "$TMP/model.json" --steps 2 --seq-len 256 --global-batch 6 --threads 1 --cp-grain 2)
reference
same "three dp ranks: sums over cp first" --cp 2 --ranks 6 --zero 2
same "three dp ranks: sums over cp first" --cp 2 --ranks 6 --zero 0 --overlap off
claim "the log calls no bits this layout's own" [ "$(grep -c "this layout's own" "$TMP/.err")" = 0 ]
run "$BIN/ptrain" --data "$TMP/text" --out "$TMP/none" --model tiny-moe --steps 1 --seq-len 256 --global-batch 2 --cp-grain 2 --expert-leaf 2
claim "refused in one line: leaves of sequences, and sequences that are joined" [ "$rc/$(wc -l <"$TMP/.err")" = 2/1 ] &&
    claim "it says why" grep -q "leave one out" "$TMP/.err"
finish
