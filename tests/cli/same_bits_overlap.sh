#!/usr/bin/env bash
# all
# same_bits_overlap.sh - the product of ZeRO stages, dp degrees, micro-batches, dtypes and pipelines, overlapped and not: one rank's bits.
. "$(dirname "$0")/train_lib.bash"
text 1 30000 >"$TMP/text"

for tied in false true; do
    config "$TMP/model.json" tie_word_embeddings=$tied intermediate_size=100
    for dtype in fp32 bf16; do
        common=(--data "$TMP/text" --model "$TMP/model.json" --steps 4 --seq-len 33 --global-batch 8 --threads 1 --dtype $dtype)
        reference
        for layout in "--ranks 2" "--ranks 4" "--ranks 8" "--ranks 4 --tp 2" "--ranks 4 --pp 2" "--ranks 8 --tp 2 --pp 2"; do
            for zero in 0 1 2 3; do
                for micro in 0 1; do
                    for overlap in on off; do
                        # shellcheck disable=SC2086
                        same "$dtype, tied $tied" $layout --zero $zero --micro-batch $micro --overlap $overlap
                    done
                done
            done
        done
    done
done
finish
