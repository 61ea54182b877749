#!/usr/bin/env bash
# all
# serve_bits_all.sh - serve_bits.sh with every server in both dtypes, and requests among 31 others.
SERVE_BITS=all exec bash "$(dirname "$0")/serve_bits.sh"
