#!/usr/bin/env bash
# quick
# same_bits_sp.sh - sequence parallelism gives the bits of one rank: a sample (same_bits_sp_all.sh has the
# product), what it refuses.
. "$(dirname "$0")/../lib/train_lib.bash"
text 3 60000 >"$TMP/text"
steps=${SAME_BITS_STEPS:-3}

config "$TMP/model.json" num_hidden_layers=4
common=(--data "$TMP/text" --model "$TMP/model.json" --steps "$steps" --seq-len 64 --global-batch 8 \
    --threads 1)
reference
same "shares of every sequence, four sequences a call, ZeRO-3" --sp --tp 2 --ranks 4 --zero 3
common+=(--dtype bf16)
reference
same "bf16: a pipeline carries shares, layers computed again" --sp --tp 4 --pp 2 --micro-batch 2 --recompute \
    full

family "$TMP/model.json" gpt2
common=(--data "$TMP/text" --model "$TMP/model.json" --steps "$steps" --seq-len 64 --global-batch 4 \
    --threads 1)
reference
same "biases, layer norms and positions of own rows, late weight gradients" --sp --tp 2 --pp 2 --micro-batch \
    1 --schedule zero-bubble
SHARDLINE_DEVICE=$fake_device same "on a device with memory of its own" --device cuda --sp --tp 2 \
    --micro-batch 2

refused() {
    run "$BIN/ptrain" "${common[@]}" --out "$TMP/refused" "${@:2}"
    claim "refused, in one line: ${*:2}" [ "$rc/$(wc -l <"$TMP/.err")" = 2/1 ] &&
        claim "${*:2}: says why" grep -q -- "$1" "$TMP/.err"
}
refused "use --tp 2 or more" --sp
refused "use a multiple of 8" --sp --tp 2 --seq-len 60
refused "use a multiple of 8" --sp --tp 2 --seq-len 60 --dry-run
finish
