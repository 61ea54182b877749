#!/usr/bin/env bash
# all
# same_bits_all.sh - same_bits.sh over more steps.
SAME_BITS_STEPS=20 exec bash "$(dirname "$0")/same_bits.sh"
