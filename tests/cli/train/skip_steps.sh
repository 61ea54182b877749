#!/usr/bin/env bash
# quick
# skip_steps.sh - a step whose loss is not a number changes nothing, is said, and is the same at every layout;
# ten in a row end the run.
. "$(dirname "$0")/../lib/train_lib.bash"
text 1 20000 >"$TMP/plain"
{ head -c 5000 "$TMP/plain"; printf Z; tail -c 15000 "$TMP/plain"; } >"$TMP/text"

# a model whose embedding of Z is not a number: only the sequence that has the Z meets it
config "$TMP/c.json" vocab_size=256
"$BIN/ptrain" --data "$TMP/plain" --model "$TMP/c.json" --out "$TMP/init" --steps 1 --seq-len 32 \
    --global-batch 4 --threads 1 >/dev/null 2>&1
"$BIN/reshard" --format hf --weights-only "$TMP/init/step-1" "$TMP/hf" 2>/dev/null
f=$TMP/hf/model.safetensors
head=$(od -An -tu8 -N8 "$f" | tr -d ' ')
at=$(head -c $((head + 8)) "$f" | tail -c "$head" |
    sed 's/.*"model.embed_tokens.weight":{[^}]*"data_offsets":\[\([0-9]*\),.*/\1/')
printf '\000\000\300\177' | dd of="$f" bs=1 seek=$((8 + head + at + 90 * 72 * 4)) conv=notrunc 2>/dev/null

common=(--data "$TMP/text" --init "$TMP/hf" --steps 24 --seq-len 64 --global-batch 4 --threads 1 \
    --data-order stride:1)
reference
claim "one step is skipped and said" [ "$(grep -c '"event":"skip"' "$TMP/reference.jsonl")" = 1 ]
claim "its loss is no number" [ "$(grep -c '"loss":null' "$TMP/reference.jsonl")" = 2 ]
claim "the steps after it are" [ "$(tail -n 2 "$TMP/reference.jsonl" | grep -c '"loss":null')" = 0 ]
same "skipped on every tensor parallel rank" --tp 2
same "skipped with sliced gradients" --ranks 2 --zero 2
same "skipped with gathered weights, in a pipeline" --pp 2 --ranks 4 --zero 3 --micro-batch 1
same "skipped with state in files" --offload "$TMP/disk" --ranks 2 --zero 1

# no step is clipped: with state in files the update of the bad step is begun before its norm is known
for dtype in fp32 bf16; do
    common=(--data "$TMP/text" --init "$TMP/hf" --steps 24 --seq-len 64 --global-batch 4 --threads 1 \
        --data-order stride:1 --clip 1000 --dtype $dtype)
    reference
    same "undone, $dtype" --offload "$TMP/disk"
    [ $dtype = fp32 ] || same "undone with weights and gradients, $dtype" --offload "$TMP/disk" --zero 3 --offload-grads --offload-params
    claim "an update was undone" grep -q '"event":"offload".*"redone":1' "$TMP/layout.jsonl"
done

for i in 1 2 3 4 5 6; do tr a-z Z <"$TMP/plain"; done >"$TMP/bad"
run "$BIN/ptrain" --data "$TMP/bad" --init "$TMP/hf" --out "$TMP/end" --steps 24 --seq-len 64 --global-batch \
    4 --threads 1
claim "eleven in a row end the run" [ $rc = 1 ]
claim "with what to change" grep -q "the 11th such step in a row: lower --lr" <<<"$err"
finish
