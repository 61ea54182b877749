#!/usr/bin/env bash
# all
# chats_all.sh - longer runs on conversations, some of them over several epochs: the bits of one rank at every kind
# of layout, in both dtypes, for families with experts, windows and tied embeddings.
. "$(dirname "$0")/../lib/chats_lib.bash"
talks 1 60 >"$TMP/talks.jsonl"
talks 2 200 >"$TMP/more.jsonl"
text 3 30000 >"$TMP/text"
chats=(--data "$TMP/talks.jsonl" --chat-template "$TMP/form" --threads 1)

# layouts WHAT: one rank first, then the lines of standard input
layouts() {
    local what=$1 layout
    reference
    while read -r -a layout; do
        same "$what" "${layout[@]}"
    done
}

config "$TMP/c.json" vocab_size=256
for dtype in fp32 bf16; do
    common=("${chats[@]}" --model "$TMP/c.json" --steps 12 --seq-len 128 --global-batch 8 --documents 5 --dtype $dtype)
    layouts "packed conversations, $dtype" <<'LAYOUTS'
--micro-batch 1
--tp 2 --sp --micro-batch 2
--tp 4
--tp 8 --micro-batch 1
--pp 2 --micro-batch 1 --schedule zero-bubble --recompute full
--pp 2 --micro-batch 1 --schedule gpipe
--ranks 2 --zero 1 --micro-batch 1
--ranks 4 --zero 2
--ranks 8 --zero 3
--tp 2 --pp 2 --ranks 8 --zero 1 --micro-batch 2
--ranks 2 --zero 3 --overlap off --offload cpu
LAYOUTS
done

config "$TMP/long.json" vocab_size=256 max_position_embeddings=512
common=(--data "$TMP/more.jsonl" --chat-template "$TMP/form" --threads 1 --model "$TMP/long.json" --steps 4 --seq-len 512
    --global-batch 4 --documents 12 --cp-grain 4)
layouts "sequences cut into leaves" <<'LAYOUTS'
--cp 2
--cp 4
--cp 2 --tp 2 --sp
--cp 2 --ranks 4 --zero 3
--cp 2 --pp 2
LAYOUTS

common=(--data "$TMP/talks.jsonl" "$TMP/text" --data-mix 3,1 --chat-template "$TMP/form" --threads 1 --model "$TMP/c.json"
    --steps 8 --seq-len 96 --global-batch 8 --loss-divisor 500)
layouts "a mixture with text, a fixed divisor" <<'LAYOUTS'
--tp 2 --micro-batch 1
--ranks 4 --zero 3 --micro-batch 1
LAYOUTS

for family in mixtral deepseek_v3 gpt_oss qwen2 gemma2; do
    family "$TMP/$family.json" $family
    common=("${chats[@]}" --model "$TMP/$family.json" --steps 6 --seq-len 64 --global-batch 8 --documents 3)
    [[ $family == mixtral || $family == deepseek_v3 ]] && common+=(--balance sequence --balance-rate 0.1)
    reference
    same "$family" --tp 2 --micro-batch 2
    same "$family" --ranks 4 --zero 3 --micro-batch 1
    [[ $family == mixtral || $family == deepseek_v3 || $family == gpt_oss ]] && same "$family" --ranks 2 --ep 2 --zero 1
done

# an adapter of frozen weights
config "$TMP/c.json" vocab_size=256
run ptrain --data "$TMP/text" --model "$TMP/c.json" --steps 2 --seq-len 64 --global-batch 4 --out "$TMP/base"
common=("${chats[@]}" --init "$TMP/base/step-2" --lora r=4,alpha=8,targets=q_proj,down_proj --steps 6 --seq-len 128
    --global-batch 8 --documents 5)
layouts "an adapter" <<'LAYOUTS'
--tp 2 --sp --micro-batch 2
--pp 2 --micro-batch 1
--ranks 4 --zero 2 --micro-batch 1
LAYOUTS

common=("${chats[@]}" --model "$TMP/c.json" --steps 12 --seq-len 128 --global-batch 8 --documents 5)
reference
of_class avx2 same "kernels of the AVX2 class"
portable "portable kernels"
reference
for at in 3 7 10; do
    train part --stop-after $at --ranks 2 --zero 3
    run timeout 100 "$BIN/ptrain" "${common[@]}" --tp 2 --resume "$TMP/part/step-$at" --out "$TMP/rest"
    claim "stopped after $at, it goes on in another layout to the same state" [ "$(state_of "$out")" = "$ref_state" ]
    rm -rf "$TMP/rest"
done
finish
