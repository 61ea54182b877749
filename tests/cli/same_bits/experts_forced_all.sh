#!/usr/bin/env bash
# all
# experts_forced_all.sh - experts_forced.sh in both dtypes, at more layouts.
EXPERTS_FORCED=all exec bash "$(dirname "$0")/experts_forced.sh"
