#!/usr/bin/env bash
# all
# serve_families_all.sh - serve_families.sh with every family, both dtypes, tp 1 to 8.
SERVE_FAMILIES=all exec bash "$(dirname "$0")/serve_families.sh"
