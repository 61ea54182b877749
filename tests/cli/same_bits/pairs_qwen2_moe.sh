#!/usr/bin/env bash
# all long
# pairs_qwen2_moe.sh - qwen2_moe at layouts in which every pair of values of two dimensions occurs: see
# pairs.py.
. "$(dirname "$0")/../lib/pairs.bash"
pairs experts qwen2_moe
finish
