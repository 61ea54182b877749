#!/usr/bin/env bash
# all
# volumes_all.sh - volumes.sh with every dtype on 2 and 4 ranks, overlapped and not.
VOLUMES="$(echo {2,4}/{fp32,bf16}/{on,off})" exec bash "$(dirname "$0")/volumes.sh"
