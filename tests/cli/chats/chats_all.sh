#!/usr/bin/env bash
# all
# chats_all.sh - chats.sh with context parallel, experts, and pipelines of tensor and data parallel ranks.
ALL=1 exec bash "$(dirname "$0")/chats.sh"
