#!/usr/bin/env bash
# all
# serve_experts_all.sh - serve_families.sh with every family with experts, both dtypes, tp 1 to 8, experts
# whole and cut, and pages that run out.
SERVE_FAMILIES=experts exec bash "$(dirname "$0")/serve_families.sh"
