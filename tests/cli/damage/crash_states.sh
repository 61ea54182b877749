#!/usr/bin/env bash
# all
# crash_states.sh - crash_test with 25 states behind every operation, and a save by two ranks.
. "$(dirname "$0")/../lib/lib.bash"
CRASH_STATES=25 "$BIN/../tests/unit/format/crash_test" >"$TMP/.out" 2>&1
rc=$?
claim "every state is one of the whole checkpoints" [ $rc = 0 ]
claim "none is left out" grep -q '^4 passed, 0 failed, 0 skipped$' "$TMP/.out"
finish
