#!/usr/bin/env bash
# all
# parity_ep.sh - parity.sh for mixtures of experts that are divided over two ranks.
PARITY=ep exec bash "$(dirname "$0")/parity.sh"
