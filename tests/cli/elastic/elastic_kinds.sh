#!/usr/bin/env bash
# quick
# elastic_kinds.sh - the layout of other kinds of runs changes too: masters and moments in files, an adapter, one whose
# bits are its layout's own.
. "$(dirname "$0")/../lib/elastic_lib.bash"
text 1 20000 >"$TMP/text"
common=(--data "$TMP/text" --model tiny --steps 12 --seq-len 32 --global-batch 6 --threads 1)
reference
wish 'ranks = 2' 'tp = 1' 'zero = 2'
begin files --ranks 2 --tp 2 --offload "$TMP" --memory-every 2
claim "masters and moments in files" saw "2 ranks, tp 2 -> 2 ranks, dp 2, zero 2 at step"
as_reference "masters and moments in files"

wish 'ranks = 3'
begin own --ranks 1
claim "a layout that would change the bits is refused" saw "dp 3 cuts the tree of 6 sequences elsewhere"
as_reference "the run that it is refused to"
begin own --ranks 1 --any-bits
ends
claim "--any-bits takes it, with the state as it was" grep -q "1 rank -> 3 ranks, dp 3 at step 1, digest" "$TMP/stderr"
claim "and ends well" [ $rc = 0 ]
own_state=$state own_bits=$bits
claim "with other bits" [ "$own_bits" != "$ref_bits" ]
"$BIN/ptrain" "${common[@]}" --out "$TMP/stop" --stop-after 1 >"$TMP/.out" 2>"$TMP/.err"
run "$BIN/ptrain" "${common[@]}" --out "$TMP/stop" --resume auto --ranks 3
claim "those of a run that is stopped and goes on in that layout" [ "$(state_of "$out")" = "$own_state" ]

config "$TMP/model.json"
"$BIN/ptrain" --data "$TMP/text" --model "$TMP/model.json" --steps 1 --seq-len 16 --global-batch 1 --threads 1 \
    --out "$TMP/base" >"$TMP/.out" 2>"$TMP/.err"
common=(--data "$TMP/text" --init "$TMP/base/step-1" --lora r=5,alpha=8,targets=all-linear --steps 12 --seq-len 32
    --global-batch 4 --threads 1)
reference
wish 'ranks = 4' 'tp = 2' 'zero = 3'
begin adapter --ranks 2 --ranks-per-node 1 --memory-every 2
claim "an adapter" saw "2 ranks, dp 2 -> 4 ranks, tp 2, dp 2, zero 3 at step"
as_reference "an adapter"
claim "PEFT's file has the same bytes" cmp -s "$TMP/adapter/step-12/adapter_model.safetensors" "$TMP/reference/step-12/adapter_model.safetensors"
finish
