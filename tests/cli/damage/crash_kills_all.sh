#!/usr/bin/env bash
# all
# crash_kills_all.sh - crash_kills.sh with 200 kills.
export TIMES=10
. "$(dirname "$0")/crash_kills.sh"
