#!/usr/bin/env bash
# quick
# hangup.sh - SIGHUP to a run with --layout-file: a process's reads the file, that of a lost terminal asks to stop.
. "$(dirname "$0")/../lib/train_lib.bash"
text 1 20000 >"$TMP/text"
echo 'ranks = 1' >"$TMP/layout.toml"
run python3 "$(dirname "$0")/hangup.py" "$TMP" "$BIN/ptrain" --data "$TMP/text" --model tiny --steps 1000000 --seq-len 32 \
    --global-batch 8 --threads 1 --out "$TMP/out" --log "$TMP/log" --layout-file "$TMP/layout.toml"
claim "the run goes on at one and ends at the other" [ $rc = 0 ]
claim "and is saved" has "$(cat "$TMP/stderr")" "stopped by a signal at step"
finish
