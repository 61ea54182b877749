#!/usr/bin/env bash
# quick
# eval_context.sh - an evaluation whose ranks divide the sequences (--cp) gives the loss and the log-probs of one rank, in the order of the tokens;
# so does one inside of a run.
. "$(dirname "$0")/../lib/train_lib.bash"
text 5 60000 >"$TMP/text"
text 7 9000 >"$TMP/held"

for name in llama gpt_oss deepseek_v3; do # windows and sinks; latent attention
    config "$TMP/model.json" max_position_embeddings=512
    [ $name = llama ] || family "$TMP/model.json" $name
    "$BIN/ptrain" --data "$TMP/text" --model "$TMP/model.json" --seq-len 64 --global-batch 2 --steps 2 --threads 1 \
        --out "$TMP/$name" >"$TMP/out" 2>&1
    eval_at() {             # eval_at NAME ARGS...: what it prints, and its log-probs in $TMP/NAME.jsonl
        local file=$1
        shift
        run "$BIN/ptrain" --eval-only --init "$TMP/$name/step-2" --eval-data "$TMP/held" --seq-len 256 --threads 1 \
            --eval-logprobs "$TMP/$file.jsonl" "$@"
        result=$(grep "perplexity" <<<"$out")
        claim "$name, evaluated ($*)" [ $rc = 0 ]
    }
    eval_at one
    expected=$result
    claim "$name: a line a window" [ "$(wc -l <"$TMP/one.jsonl")" = 35 ]
    layouts=("--cp 2")
    [ $name = llama ] && layouts=("--cp 2 --tp 2 --pp 2" "--cp 2 --ranks 4 --ranks-per-node 2")
    for layout in "${layouts[@]}"; do
        read -r -a words <<<"$layout"
        eval_at other "${words[@]}"
        claim "$name ($layout): the same loss" [ "$result" = "$expected" ]
        claim "$name ($layout): the same log-probs, token by token" cmp -s "$TMP/one.jsonl" "$TMP/other.jsonl"
    done
done

run "$BIN/ptrain" --eval-only --init "$TMP/llama/step-2" --eval-data "$TMP/held" --seq-len 256 --cp 2 --micro-batch 2 --threads 1
claim "refused: more sequences a micro-batch" grep -q "a micro-batch is one sequence" <<<"$err"

common=(--data "$TMP/text" --model "$TMP/model.json" --steps 2 --seq-len 256 --global-batch 2 --threads 1 --cp-grain 2
    --eval-data "$TMP/held" --eval-every 1 --eval-batches 4)
losses() { sed -n 's/.*"event":"eval".*"eval_loss":\([^,]*\),.*/\1/p' "$TMP/$1.jsonl"; }
train one
expected=$(losses one)
claim "two evaluations in a run" [ "$(wc -l <<<"$expected")" = 2 ]
train two --cp 2
claim "with --cp 2 the same losses" [ "$(losses two)" = "$expected" ]
finish
