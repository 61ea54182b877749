#!/usr/bin/env bash
# all long
# elastic_all.sh - random layouts every few steps, and kills at random moments (elastic_all.py): the bits of a run
# that is left alone.
. "$(dirname "$0")/../lib/train_lib.bash"
if ! command -v python3 >/dev/null; then
    skip "no python3"
    finish
fi
BIN=$BIN python3 -B "$(dirname "$0")/elastic_all.py" >"$TMP/said" 2>&1
rc=$?
cat "$TMP/said"
claim "every loss and state of a walk over layouts, and of runs that were killed" [ $rc = 0 ]
finish
