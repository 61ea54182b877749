#!/usr/bin/env bash
# all
# same_bits_offload_all.sh - same_bits_offload.sh with more layouts and families.
export OFFLOAD=all
. "$(dirname "$0")/same_bits_offload.sh"
