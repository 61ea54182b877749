#!/usr/bin/env bash
# all
# serve_mtp_all.sh - serve_mtp.sh in every layout, and against transformers. PEER_PYTHON=python that has it.
SERVE_MTP=all exec bash "$(dirname "$0")/serve_mtp.sh"
