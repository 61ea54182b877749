#!/usr/bin/env bash
# quick
# experts_rounds.sh - rows of experts that do not fit into --expert-buffer travel in several rounds: the same
# bits, the rounds counted in the log. Routers are forced, so that one rank gets most rows.
# EXPERTS_ROUNDS=all: bf16, more layouts.
here=$(cd "$(dirname "$0")" && pwd)
. "$here/../lib/train_lib.bash"
command -v python3 >/dev/null || { skip "no python3"; finish; }
text 5 30000 >"$TMP/text"
every=$([ "${EXPERTS_ROUNDS:-sample}" != all ] || echo yes)

# forced FAMILY CASE: $TMP/start, weights of a small model whose routers choose what CASE of experts_forced.py
# says
forced() {
    rm -rf "$TMP/model" "$TMP/start"
    family "$TMP/model.json" "$1"
    run ptrain --data "$TMP/text" --model "$TMP/model.json" --steps 1 --lr 0 --seq-len 64 --global-batch 1 \
        --out "$TMP/model"
    run reshard --format hf "$TMP/model/step-1" "$TMP/start"
    [ "$2" = as_made ] || run python3 -B "$here/experts_forced.py" "$TMP/start" "$2"
    claim "$1, $2: the weights are made" [ $rc = 0 ] || finish
    common=(--data "$TMP/text" --init "$TMP/start" --steps 2 --lr 1e-4 --seq-len 64 --global-batch 8 \
        --threads 1 "${@:3}")
    reference
}
# rounds: of every layer with experts, in the first step of the last run
rounds() { sed -n 's/.*"expert_rounds":\[\([^]]*\)\].*/\1/p' "$TMP/layout.jsonl" | head -n 1; }
# same_in ROUNDS LAYOUT...: a run with the reference's bits, in so many rounds ("several": 2 and more)
same_in() {
    same "$1 rounds" "${@:2}"
    claim "${*:2}: rounds are $1, counted $(rounds)" [ \
        "$(rounds | if [ "$1" = several ]; then sed 's/^[0-9,]*[2-9][0-9,]*$/several/'; else cat; fi)" = \
            "$1" ]
}

# all 8 sequences of 64 tokens to experts 0 and 1, on rank 0: 1024 rows; an even load of it is 256 (ep 4), 512
# (ep 2)
forced mixtral zero
same_in 4,4 --ep 4 --ranks 4 --expert-buffer 1 --zero 1
same_in 2,2 --ep 4 --ranks 4 --micro-batch 1 --expert-buffer 2 --zero 3 --recompute selective
same_in 2,2 --pp 2 --ep 2 --ranks 4 --micro-batch 2 --schedule zero-bubble --expert-buffer 1
run ptrain "${common[@]}" --ep 4 --ranks 4 --dry-run
claim "the plan says the room, and that one sequence fits" grep -q \
    '^expert room  384 rows a rank, layer and round; an even load: 256, the most of 1 sequence: 128$' \
        <<<"$out"
# biases of experts, whose gradients have leaves of their own
forced gpt_oss as_made
same_in several --tp 2 --ep 4 --ranks 4 --zero 3 --recompute full --expert-buffer 0.1
[ -n "$every" ] || finish

same_in several --ep 4 --pp 2 --ranks 8 --schedule zero-bubble --zero 2 --expert-buffer 0.1
forced qwen2_moe zero
same_in 2,2 --tp 2 --ep 4 --ranks 4 --zero 3 --expert-buffer 1
for dtype in fp32 bf16; do
    forced mixtral zero --dtype $dtype
    same_in 1,1 --ep 4 --ranks 4 --expert-buffer 100
    same_in 3,3 --ep 4 --ranks 4 --overlap off
    same_in 4,4 --tp 2 --sp --ep 4 --ranks 4 --expert-buffer 1 --zero 2
    same_in 8,8 --tp 2 --sp --ep 8 --ranks 8 --zero 3 --recompute full --expert-buffer 0.1
    common+=(--expert-leaf 2)
    reference
    same_in 4,4 --ep 4 --ranks 4 --expert-buffer 0.1
    forced mixtral two_take_all --dtype $dtype
    same_in 2,2 --pp 2 --ep 2 --ranks 4 --micro-batch 2 --schedule zero-bubble --recompute full \
        --expert-buffer 0.1
    same_in 2,2 --ep 2 --ranks 4 --micro-batch 2 --overlap off --zero 3 --expert-buffer 0.1
    same_in 2,2 --ep 2 --ranks 4 --micro-batch 2 --pp 2 --schedule gpipe --zero 3 --recompute selective \
        --expert-buffer 0.1
    forced deepseek_v3 zero --dtype $dtype
    same_in 8 --tp 2 --sp --ep 4 --ranks 4 --zero 3 --recompute selective --expert-buffer 0.1
    same_in 8 --ep 4 --ranks 4 --zero 2 --expert-buffer 0.1
    same_in 4 --pp 2 --tp 2 --ep 2 --ranks 4 --micro-batch 4 --schedule zero-bubble --expert-buffer 0.1
done
finish
