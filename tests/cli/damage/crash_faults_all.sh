#!/usr/bin/env bash
# all
# crash_faults_all.sh - crash_faults.sh for every n.
export EVERY=1
. "$(dirname "$0")/crash_faults.sh"
