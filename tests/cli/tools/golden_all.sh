#!/usr/bin/env bash
# all sanitize
# golden_all.sh - golden.sh with every refusal of ptrain (train_refusals.golden) too.
export ALL=1
. "$(dirname "$0")/golden.sh"
