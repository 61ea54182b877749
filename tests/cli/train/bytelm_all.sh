#!/usr/bin/env bash
# all
# bytelm_all.sh - all 300 steps of bytelm.sh
export BYTELM_STEPS=300
. "$(dirname "$0")/bytelm.sh"
