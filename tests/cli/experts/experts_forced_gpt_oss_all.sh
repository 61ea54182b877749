#!/usr/bin/env bash
# all
# experts_forced_gpt_oss_all.sh - experts_forced.sh with gpt-oss, in both dtypes, at more layouts.
EXPERTS_FORCED=gpt_oss exec bash "$(dirname "$0")/experts_forced.sh"
