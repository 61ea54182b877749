#!/usr/bin/env bash
# all long
# pairs_deepseek_v3.sh - deepseek_v3 at layouts in which every pair of values of two dimensions occurs: see
# pairs.py.
. "$(dirname "$0")/../lib/pairs.bash"
pairs bias deepseek_v3
finish
