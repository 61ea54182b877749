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
same "experts over cp and tp ranks, shares, late weight gradients" --cp 2 --tp 2 --sp --ep 4 --pp 2 --schedule zero-bubble
finish
