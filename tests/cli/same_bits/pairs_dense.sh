#!/usr/bin/env bash
# all long
# pairs_dense.sh - Gemma 2, Gemma 3 and GPT-NeoX at layouts in which every pair of values of two dimensions
# occurs: see pairs.py.
. "$(dirname "$0")/../lib/pairs.bash"
for name in gemma2 gemma3 neox; do
    pairs dense $name
done
finish
