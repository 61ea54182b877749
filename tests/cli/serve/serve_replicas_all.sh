#!/usr/bin/env bash
# all
# serve_replicas_all.sh - serve_replicas.sh also with replicas of one rank, and with each rank dying in turn.
export ALL=1
. "$(dirname "$0")/serve_replicas.sh"
