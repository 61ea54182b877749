#!/usr/bin/env bash
# all
# serve_speculate_all.sh - serve_speculate.sh in every layout, and with a mixture of experts.
SERVE_SPECULATE=all exec bash "$(dirname "$0")/serve_speculate.sh"
