#!/usr/bin/env bash
# all
# serve_replicas_all.sh - serve_replicas.sh with replicas of one rank too, and every place of a rank that dies.
export ALL=1
. "$(dirname "$0")/serve_replicas.sh"
