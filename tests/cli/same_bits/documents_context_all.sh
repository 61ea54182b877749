#!/usr/bin/env bash
# all
# documents_context_all.sh - documents_context.sh at more layouts and of more families, and with eight leaves.
ALL=1 exec bash "$(dirname "$0")/documents_context.sh"
