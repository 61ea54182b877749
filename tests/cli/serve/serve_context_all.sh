#!/usr/bin/env bash
# all
# serve_context_all.sh - serve_context.sh with more layouts, chunks and models.
SERVE_CONTEXT=all exec bash "$(dirname "$0")/serve_context.sh"
