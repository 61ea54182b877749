#!/usr/bin/env bash
# all
# experts_forced_all.sh - experts_forced.sh with Mixtral, in both dtypes, at more layouts.
EXPERTS_FORCED=mixtral exec bash "$(dirname "$0")/experts_forced.sh"
