#!/usr/bin/env bash
# all long
# pairs_qwen3_moe.sh - qwen3_moe at layouts in which every pair of values of two dimensions occurs: see
# pairs.py.
. "$(dirname "$0")/../lib/pairs.bash"
pairs experts qwen3_moe
finish
