#!/usr/bin/env bash
# all
# crash_faults_foreign.sh - crash_faults.sh for conversions to the formats of other frameworks.
export LOOPS=foreign
. "$(dirname "$0")/crash_faults.sh"
