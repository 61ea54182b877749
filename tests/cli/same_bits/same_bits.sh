#!/usr/bin/env bash
# quick long
# same_bits.sh - the numerics contract end to end: every layout gives the bits of one rank. Each line names
# the code path it is there for.
. "$(dirname "$0")/../lib/train_lib.bash"
text 1 60000 >"$TMP/text"
steps=${SAME_BITS_STEPS:-6}

config "$TMP/gqa.json"
common=(--data "$TMP/text" --model "$TMP/gqa.json" --steps "$steps" --seq-len 63 --global-batch 8 --threads 1)
reference
same "column and row parallel products, vocabulary split, kv heads split" --tp 2
same "kv heads replicated: dk, dv summed over replicas first" --tp 4
same "one block a rank, kv heads replicated over four" --tp 8
same "gradients all-reduced over dp" --ranks 2
same "dp 4, one all-reduce" --ranks 4
same "ZeRO-1: reduce-scatter, sliced moments, gathered weights" --ranks 2 --zero 1
same "ZeRO-2: one shared buffer, slices counted" --ranks 4 --zero 2
same "ZeRO-2 with the counter over super-steps" --ranks 2 --zero 2 --micro-batch 1
same "ZeRO-3: units gathered and freed" --ranks 2 --zero 3
same "ZeRO-3 over 4 with micro-batches" --ranks 4 --zero 3 --micro-batch 1
same "without overlap: gradients summed when backward waits for them" --ranks 2 --overlap off
same "without overlap: ZeRO-2, one buffer" --ranks 4 --zero 2 --overlap off
same "without overlap: ZeRO-3 gathers when it needs a unit" --ranks 4 --zero 3 --micro-batch 1 --overlap off
same "tp x dp" --tp 2 --ranks 4
same "tp x dp with ZeRO-3" --tp 2 --ranks 4 --zero 3
same "tp 4 x dp 2 with ZeRO-1" --tp 4 --ranks 8 --zero 1
same "the counter of partial sums, one sequence at a time" --micro-batch 1
same "the tree inside a call, four sequences at a time" --micro-batch 4
same "two threads" --threads 2
same "two pipeline stages, 1F1B" --pp 2 --micro-batch 1
same "GPipe: all forwards first" --pp 2 --micro-batch 2 --schedule gpipe
same "one micro-batch at a time through the pipeline" --pp 2 --micro-batch 2 --schedule naive
same "pp x tp x dp with ZeRO-3 and recompute" --pp 2 --tp 2 --ranks 8 --zero 3 --micro-batch 2 --recompute \
    full
same "norms and activations computed again" --recompute selective
same "whole layers computed again" --recompute full --tp 2
of_class avx2 same "kernels of the AVX2 class"
SHARDLINE_TRANSPORT=mpi same "the mpi transport, overlapped" --tp 2 --ranks 4 --zero 3
same "two machines of two ranks: ZeRO-1 weights once a machine" --ranks 4 --ranks-per-node 2 --zero 1
same "two machines of two ranks, ZeRO-3, overlapped" --ranks 4 --ranks-per-node 2 --zero 3 --micro-batch 1 \
    --overlap on
same "ZeRO-3, a prefetched unit is packed for recomputing" --ranks 2 --zero 3 --micro-batch 2 --recompute full
portable "portable kernels"

common=(--data "$TMP/text" --model "$TMP/gqa.json" --steps "$steps" --seq-len 63 --global-batch 8 --threads \
    1 --dtype bf16)
reference
same "bf16: rounding after the tree" --tp 2
same "bf16: replicated kv heads" --tp 8
same "bf16: masters sliced, weights gathered" --ranks 2 --zero 1
same "bf16: ZeRO-3 gathers bf16 units" --tp 2 --ranks 4 --zero 3 --micro-batch 1
same "bf16: dp 4" --ranks 4 --zero 2
same "bf16: pipeline with recompute" --pp 2 --ranks 4 --zero 1 --micro-batch 2 --recompute selective
same "bf16: two threads, micro-batch 1" --threads 2 --micro-batch 1
of_class avx512 same "bf16 pairs without the dot instruction"
portable "bf16 pairs in portable C"

config "$TMP/tied.json" tie_word_embeddings=true intermediate_size=100
common=(--data "$TMP/text" --model "$TMP/tied.json" --steps "$steps" --seq-len 33 --global-batch 12 \
    --threads 1)
reference
same "batch of 12 over dp 4: runs of three" --ranks 4
same "batch of 12 over dp 4, ZeRO-3, one sequence at a time: a run is added before it is reduced" --ranks 4 \
    --zero 3 --micro-batch 1
same "batch of 12 over dp 2, micro-batch 2: a call that ends inside a run" --ranks 2 --zero 2 --micro-batch 2
same "tied embedding split over tp 4, GRAIN 4" --tp 4
same "tied embedding gathered for the head" --tp 2 --ranks 4 --zero 3
same "tied embedding on both ends of a pipeline" --pp 2 --micro-batch 3
same "tied, pipeline, sliced gradients swapped" --pp 2 --ranks 4 --zero 2 --micro-batch 2

config "$TMP/deep.json" num_hidden_layers=5 tie_word_embeddings=true
common=(--data "$TMP/text" --model "$TMP/deep.json" --steps 4 --seq-len 33 --global-batch 8 --threads 1)
reference
same "interleaved: two virtual stages a rank, uneven, a tied embedding across them" --pp 2 --micro-batch 2 \
    --schedule interleaved --virtual-stages 2
same "zero-bubble: weight gradients by themselves, late" --pp 2 --micro-batch 1 --schedule zero-bubble
same "zero-bubble over four ranks, fewer micro-batches than ranks" --pp 4 --micro-batch 4 --schedule \
    zero-bubble
same "zero-bubble x dp with ZeRO-2, layers computed again" --pp 2 --ranks 4 --zero 2 --micro-batch 1 \
    --schedule zero-bubble --recompute full
same "zero-bubble x tp x dp with ZeRO-3, norms computed again" --pp 2 --tp 2 --ranks 8 --zero 3 \
    --micro-batch 1 --schedule zero-bubble --recompute selective
same "interleaved x dp with ZeRO-3" --pp 2 --ranks 4 --zero 3 --micro-batch 1 --schedule interleaved \
    --virtual-stages 2
same "tied, micro-batch 4 cuts runs of three" --micro-batch 4
finish
