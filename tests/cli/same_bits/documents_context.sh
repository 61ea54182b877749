#!/usr/bin/env bash
# quick
# documents_context.sh - documents in sequences that cp ranks divide: what one rank gives at the same --cp-grain, where chunks end inside of blocks
# and of pages, on one machine and on several.
. "$(dirname "$0")/../lib/train_lib.bash"
text 5 40000 >"$TMP/words"
# documents of 1 to 300 bytes, a JSON line each
fold -w 300 "$TMP/words" |
    awk 'BEGIN { srand(3) } { print "{\"text\":\"" substr($0, 1, 1 + int(rand() * 299)) "\"}" }' >"$TMP/docs.jsonl"
"$BIN/ptok" prepare --tokenizer bytes "$TMP/docs.jsonl" --out "$TMP/docs.bin" 2>/dev/null

config "$TMP/model.json" max_position_embeddings=1024
common=(--data "$TMP/docs.bin" --model "$TMP/model.json" --steps 2 --seq-len 512 --global-batch 2 --threads 1
    --documents 64 --cp-grain 4)
reference
same "two leaves a rank" --cp 2
same "a leaf a rank, two machines of two ranks" --cp 4 --ranks 4 --ranks-per-node 2
names=gpt_oss # windows and sinks

if [ -n "${ALL:-}" ]; then
    train whole --cp-grain 1
    claim "four leaves a sequence are another order" [ "$ref_state" != "$state" ]
    same "leaves of one rank" --micro-batch 1 --threads 2
    same "a leaf a rank, layers computed again: their pages too" --cp 4 --recompute full
    same "with ZeRO-3 over dp" --cp 2 --ranks 4 --zero 3
    same "replicated kv heads" --cp 2 --tp 4
    same "on every pipeline stage" --cp 2 --pp 2 --schedule zero-bubble
    same "four machines" --cp 4 --ranks 4 --ranks-per-node 1
    common+=(--seq-len 1024 --cp-grain 8)
    reference
    for cp in 2 4 8; do same "eight leaves" --cp $cp; done
    names="gpt_oss deepseek_v3 gpt2 neox" # and latent attention; learned positions; heads one by one
fi

for name in $names; do
    family "$TMP/model.json" $name
    sed -i 's/"n_positions":70/"n_positions":512/; s/"max_position_embeddings":256/"max_position_embeddings":512/' "$TMP/model.json"
    common=(--data "$TMP/docs.bin" --model "$TMP/model.json" --steps 2 --seq-len 512 --global-batch 2 --threads 1
        --documents 64 --cp-grain 4 --dtype bf16)
    reference
    same "$name, bf16: two leaves a rank" --cp 2
    [ -z "${ALL:-}" ] || same "$name, bf16: a leaf a rank" --cp 4 --tp 2 --zero 1
done
finish
