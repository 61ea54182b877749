#!/usr/bin/env bash
# all
# megatron_written_all.sh - megatron_written.sh for every family and at more layouts.
export ALL=1
. "$(dirname "$0")/megatron_written.sh"
