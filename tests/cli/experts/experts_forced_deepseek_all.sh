#!/usr/bin/env bash
# all
# experts_forced_deepseek_all.sh - experts_forced.sh with DeepSeek-V3, in both dtypes, at more layouts.
EXPERTS_FORCED=deepseek_v3 exec bash "$(dirname "$0")/experts_forced.sh"
