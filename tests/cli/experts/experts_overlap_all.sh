#!/usr/bin/env bash
# all long
# experts_overlap_all.sh - experts_overlap.sh with more families, layouts, transports and both dtypes.
EXPERTS_OVERLAP=all exec bash "$(dirname "$0")/experts_overlap.sh"
