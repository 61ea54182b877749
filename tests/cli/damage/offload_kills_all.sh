#!/usr/bin/env bash
# all
# offload_kills_all.sh - offload_kills.sh with 200 kills.
export KILLS=200 SEED=21
. "$(dirname "$0")/offload_kills.sh"
