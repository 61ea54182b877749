#!/usr/bin/env bash
# all long
# pairs_context.sh - sequences of 8 leaves at layouts in which every pair of values of two dimensions occurs:
# see pairs_context.py.
. "$(dirname "$0")/../lib/train_lib.bash"
command -v python3 >/dev/null || { skip "no python3"; finish; }
text 5 60000 >"$TMP/text"
# documents of 1 to 300 bytes, a JSON line each; a run without --documents does not see where they end
fold -w 300 "$TMP/text" |
    awk 'BEGIN { srand(3) } { print "{\"text\":\"" substr($0, 1, 1 + int(rand() * 299)) "\"}" }' >"$TMP/docs.jsonl"
"$BIN/ptok" prepare --tokenizer bytes "$TMP/docs.jsonl" --out "$TMP/docs.bin" >/dev/null 2>&1

# model FAMILY WINDOW: four layers of dense|experts; every second layer has the window
model() {
    case $1/$2 in
    dense/0) config "$TMP/model.json" ;;
    dense/*) family "$TMP/model.json" gemma2 ;;
    experts/0) family "$TMP/model.json" mixtral ;;
    *) family "$TMP/model.json" gpt_oss ;;
    esac
    sed -i -E 's/"max_position_embeddings":256/"max_position_embeddings":1024/; s/"num_hidden_layers":2/"num_hidden_layers":4/' "$TMP/model.json"
    sed -i -E "s/\"sliding_window\":9/\"sliding_window\":$2/; s/\"num_local_experts\":[0-9]+/\"num_local_experts\":32/" "$TMP/model.json"
}

run python3 -B "$(dirname "$0")/pairs_context.py"
claim "every pair that can occur is in a run" [ $rc = 0 ]
grep '^#' <<<"$out" | sed "s/^# /    /"
now=
while IFS='|' read -r -u 3 kind of layout; do
    read -ra kind <<<"$kind"; read -ra of <<<"$of"; read -ra layout <<<"$layout"
    if [ "${kind[*]} ${of[*]}" != "$now" ]; then
        now="${kind[*]} ${of[*]}"
        model "${kind[@]}"
        common=(--data "$TMP/docs.bin" --model "$TMP/model.json" --steps 2 --seq-len 1024 --cp-grain 8 "${of[@]}")
        reference --threads 1
    fi
    same "$now" "${layout[@]}"
done 3< <(grep -v '^#' <<<"$out")
finish
