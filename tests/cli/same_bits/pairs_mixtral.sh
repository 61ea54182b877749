#!/usr/bin/env bash
# all long
# pairs_mixtral.sh - mixtral at layouts in which every pair of values of two dimensions occurs: see pairs.py.
. "$(dirname "$0")/../lib/pairs.bash"
pairs experts mixtral
finish
