#!/usr/bin/env bash
# all
# serve_families_all.sh - serve_families.sh with every family without experts, both dtypes, tp 1 to 8, and
# pages that run out.
SERVE_FAMILIES=dense exec bash "$(dirname "$0")/serve_families.sh"
