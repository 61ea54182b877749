#!/usr/bin/env bash
# all
# serve_tools_all.sh - serve_tools.sh at every layout, with more answers, and with drafts.
tools_size=all
. "$(dirname "$0")/serve_tools.sh"
