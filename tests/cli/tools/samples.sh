#!/usr/bin/env bash
# quick
# samples.sh - --sample-every: the same text at every layout, whatever the length of a sequence, and training
# goes on as without it.
. "$(dirname "$0")/../lib/train_lib.bash"
text 1 20000 >"$TMP/text"
sample() { sed -n 's/.*\(sample at step.*\)/\1/p' "$TMP/.err"; }

config "$TMP/model.json" num_hidden_layers=4 vocab_size=256 max_position_embeddings=40
common=(--data "$TMP/text" --model "$TMP/model.json" --steps 2 --global-batch 4 --threads 1 --seq-len 9)
reference
same "with samples the bits of training are the same" --sample-every 1
want=$(sample)
claim "two samples, of a sequence shorter than the prompt" [ "$(wc -l <<<"$want")" = 2 ]
same "virtual stages, tp and ZeRO-3" --sample-every 1 --pp 2 --tp 2 --ranks 8 --zero 3 --micro-batch 1 \
    --schedule interleaved --virtual-stages 2
claim "virtual stages, tp and ZeRO-3 say the same" [ "$(sample)" = "$want" ]

family "$TMP/model.json" gpt2
sed -i 's/"n_positions":70/"n_positions":12/; s/"vocab_size":701/"vocab_size":256/' "$TMP/model.json"
train few --seq-len 12 --sample-every 2
claim "a model of fewer positions than a sample has tokens" [ "$rc$(sample | wc -l)" = 01 ]
finish
