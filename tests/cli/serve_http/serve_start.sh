#!/usr/bin/env bash
# quick
# serve_start.sh - what a server can start from: native checkpoints of every layout, folders, URLs; what it
# reports while it reads, and that a context of millions of positions does not delay it. See serve_start.py.
. "$(dirname "$0")/../lib/serve_lib.bash"
trained --steps 2 --ranks 4 --tp 2 --pp 2 --zero 1
mkdir "$TMP/m"
mv "$TMP/run/step-2" "$TMP/m/trained"
run pserve "$TMP/m/trained" --once "line 7" --max-tokens 20
claim "it is served from the trainer's own layout" [ $rc = 0 ]
want=$out
i=0
for layout in "--tp 8 --pp 5" "--dp 4 --zero 3 --tp 2" "--dp 3 --zero 2" "--tp 2 --compress zstd" \
    "--compress zstd-planes --dp 2 --zero 1" "--format hf" "--weights-only --tp 4"; do
    i=$((i + 1))
    run reshard $layout "$TMP/m/trained" "$TMP/m/$i"
    run pserve "$TMP/m/$i" --tp $((1 + i % 2)) --once "line 7" --max-tokens 20
    claim "$layout: the same answer" [ $rc = 0 -a "$out" = "$want" ]
done
run pserve "$TMP/m/6/model.safetensors" --once "line 7" --max-tokens 20
claim "a single file, too, with the config.json beside it" [ $rc = 0 -a "$out" = "$want" ]
sed 's/"max_position_embeddings": *[0-9]*/"max_position_embeddings": 50000000/' "$TMP/m/6/config.json" \
    >"$TMP/long" && cp -r "$TMP/m/6" "$TMP/m/long" && cp "$TMP/long" "$TMP/m/long/config.json"
claim "the config is another" [ "$(grep -c 50000000 "$TMP/m/long/config.json")" = 1 ]
head -c 8000 "$TMP/text" >"$TMP/held-out"
run ptrain --eval-only --init "$TMP/m/long" --eval-data "$TMP/held-out" --seq-len 5000 --eval-logprobs \
    "$TMP/eval.jsonl"
claim "5,000 positions are evaluated" [ $rc = 0 ]
DIGEST=$(digest "$TMP/m/trained") asked serve_start.py "$TMP"
finish
