#!/usr/bin/env bash
# all
# serve_map_all.sh - serve_map.sh at every tp, in every CPU class and dtype, and with serve_bits.py.
SERVE_MAP=all exec bash "$(dirname "$0")/serve_map.sh"
