#!/usr/bin/env bash
# all
# serve_cache_all.sh - serve_cache.sh with two servers at once, a killed one, room, layouts, and quantised weights.
SERVE_CACHE=all exec bash "$(dirname "$0")/serve_cache.sh"
