#!/usr/bin/env bash
# altered
# altered_layouts.sh [CASE] - orders that only layouts can show: two steps at one layout against one rank. Run
# by tests/altered in the altered build (tests/altered.d/train.tsv names the case that must fail for each
# alteration); each case passes in a normal build.
. "$(dirname "$0")/../lib/train_lib.bash"
case_wanted=${1:-}

# weighed N: conversations of 300 tokens with weights of both signs, more and more of them 0
weighed() {
    awk -v n="$1" 'BEGIN { srand(3)
        for (i = 0; i < n; i++) {
            ids = w = ""
            for (k = 0; k < 300; k++) {
                ids = ids (k ? "," : "") int(rand() * 701)
                w = w (k ? "," : "") (rand() < i / n ? 0 : sprintf("%.3f", rand() * 3 - 1))
            }
            print "{\"ids\":[" ids "],\"weights\":[" w "]}" } }'
}

# a case: its name, the config's keys, options of both runs, "|", the layout
while IFS='|' read -r name keys both layout; do
    [ -z "$case_wanted" ] || [ "$case_wanted" = "${name// /}" ] || continue
    [ -f "$TMP/text" ] || text 1 20000 >"$TMP/text"
    [ -f "$TMP/weighed.jsonl" ] || weighed 9 >"$TMP/weighed.jsonl"
    data=$TMP/text
    [[ $name == weights* ]] && data=$TMP/weighed.jsonl
    read -r -a keys <<<"$keys"; read -r -a both <<<"$both"; read -r -a layout <<<"$layout"
    case ${keys[0]:-} in
    family=*) family "$TMP/model.json" "${keys[0]#family=}" ;;
    *) config "$TMP/model.json" "${keys[@]}" ;;
    esac
    common=(--data "$data" --model "$TMP/model.json" --steps 3 --threads 1 "${both[@]}")
    reference
    same "$name" "${layout[@]}"
done <<'TABLE'
tp         |                          | --seq-len 33 --global-batch 4              | --tp 2
bf16_tp    |                          | --seq-len 33 --global-batch 4 --dtype bf16 | --tp 2
replicas   |                          | --seq-len 33 --global-batch 4              | --tp 4
micro      |                          | --seq-len 33 --global-batch 8              | --micro-batch 1
micro12    |                          | --seq-len 33 --global-batch 12             | --micro-batch 1
dp         |                          | --seq-len 33 --global-batch 8              | --ranks 4
supers     |                          | --seq-len 33 --global-batch 8              | --ranks 2 --zero 2 --micro-batch 1
runs       |                          | --seq-len 33 --global-batch 12             | --ranks 4 --zero 3 --micro-batch 1
qwen3      | family=qwen3             | --seq-len 33 --global-batch 4              | --tp 4
sp         |                          | --seq-len 32 --global-batch 4              | --tp 2 --sp
experts    | family=mixtral           | --seq-len 33 --global-batch 4              | --tp 2
experts_ep | family=mixtral           | --seq-len 33 --global-batch 4 --dtype bf16 | --ranks 2 --ep 2
experts_leaf | family=mixtral         | --seq-len 33 --global-batch 4 --expert-leaf 2 | --ranks 2 --ep 2 --micro-batch 1
balance    | family=mixtral           | --seq-len 33 --global-batch 4 --balance sequence --balance-rate 0.1 | --micro-batch 1
balance_global | family=mixtral       | --seq-len 33 --global-batch 4 --balance global --balance-rate 0.1 | --micro-batch 1
balance_dp | family=deepseek_v3       | --seq-len 33 --global-batch 4 --balance bias --balance-rate 0.1 | --ranks 2
context_odd | | --seq-len 256 --global-batch 6 --cp-grain 2 | --cp 2
context_dp3 | | --seq-len 256 --global-batch 6 --cp-grain 2 | --cp 2 --ranks 6
context_experts | family=mixtral | --seq-len 256 --global-batch 6 --cp-grain 2 | --cp 2 --ep 6 --ranks 6
context_balance | family=mixtral | --seq-len 256 --global-batch 2 --cp-grain 2 --balance sequence --balance-rate 0.1 | --cp 2
context_replicas | | --seq-len 256 --global-batch 2 --cp-grain 2 | --tp 4
weights_dp | | --seq-len 33 --global-batch 4 | --ranks 2
weights_cp | | --seq-len 256 --global-batch 2 --cp-grain 2 | --cp 2
tied       | tie_word_embeddings=true | --seq-len 33 --global-batch 8              | --ranks 4
TABLE
finish
