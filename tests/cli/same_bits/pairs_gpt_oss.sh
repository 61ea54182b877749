#!/usr/bin/env bash
# all long
# pairs_gpt_oss.sh - gpt_oss at layouts in which every pair of values of two dimensions occurs: see pairs.py.
. "$(dirname "$0")/../lib/pairs.bash"
pairs experts gpt_oss
finish
