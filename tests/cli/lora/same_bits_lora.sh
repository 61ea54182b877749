#!/usr/bin/env bash
# quick
# same_bits_lora.sh - an adapter is trained to the same bits in other layouts (same_bits_lora_all.sh has more),
# goes on in another one, and its checkpoint is the same PEFT file whatever the layout.
. "$(dirname "$0")/../lib/train_lib.bash"
text 3 60000 >"$TMP/text"
config "$TMP/model.json"
"$BIN/ptrain" --data "$TMP/text" --model "$TMP/model.json" --steps 1 --seq-len 16 --global-batch 1 --threads 1 \
    --out "$TMP/base" >/dev/null 2>&1
common=(--data "$TMP/text" --init "$TMP/base/step-1" --lora r=5,alpha=8,targets=all-linear --steps 3 \
    --seq-len 64 --global-batch 4 --threads 1)
reference
cp "$TMP/reference/step-3/adapter_model.safetensors" "$TMP/peft"
claim "the adapter is trained" [ "$(head -n 1 <<<"$ref_bits")" != "$(tail -n 1 <<<"$ref_bits")" ]

same "every matrix cut, slices of A and B" --tp 2 --ranks 4 --zero 3
claim "one file for PEFT, the same bytes" cmp -s "$TMP/peft" "$TMP/layout/step-3/adapter_model.safetensors"
train layout --tp 2 --pp 2 --micro-batch 1 --stop-after 1
mv "$TMP/layout" "$TMP/first"
train layout --resume "$TMP/first/step-1" --ranks 2 --zero 1 --micro-batch 1 --recompute full
claim "a run that goes on elsewhere ends in the same state" [ "$state" = "$ref_state" ]
claim "… and writes the same file" cmp -s "$TMP/peft" "$TMP/layout/step-3/adapter_model.safetensors"

"$BIN/ptrain" --data "$TMP/text" --model "$TMP/model.json" --seed 9 --steps 1 --seq-len 16 --global-batch 1 \
    --threads 1 --out "$TMP/other" >/dev/null 2>&1
run "$BIN/ptrain" "${common[@]}" --resume "$TMP/first/step-1" --init "$TMP/other/step-1" --out "$TMP/no"
claim "other weights are refused, in one line" [ "$rc/$(wc -l <"$TMP/.err")" = 2/1 ] &&
    claim "… naming both digests" grep -q "digest [0-9a-f]\{32\}, those of .* have [0-9a-f]\{32\}" "$TMP/.err"
finish
