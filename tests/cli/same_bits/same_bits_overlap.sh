#!/usr/bin/env bash
# all
# same_bits_overlap.sh - ZeRO stages x dp degrees x micro-batches x overlapped or not, with tp and pp: one
# rank's bits.
. "$(dirname "$0")/../lib/train_lib.bash"
text 1 30000 >"$TMP/text"

while read -r tied dtype; do
    config "$TMP/model.json" tie_word_embeddings="$tied" intermediate_size=100
    common=(--data "$TMP/text" --model "$TMP/model.json" --steps 3 --seq-len 33 --global-batch 8 --threads 1 \
        --dtype "$dtype")
    reference
    for layout in "--ranks 2" "--ranks 4" "--ranks 4 --tp 2" "--ranks 8 --tp 2 --pp 2"; do
        read -r -a words <<<"$layout"
        for zero in 0 1 2 3; do
            for micro in 0 1; do
                for overlap in on off; do
                    same "$dtype, tied $tied" "${words[@]}" --zero $zero --micro-batch $micro --overlap \
                        $overlap
                done
            done
        done
    done
done <<'TABLE'
false fp32
true bf16
TABLE
finish
