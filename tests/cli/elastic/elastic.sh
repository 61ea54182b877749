#!/usr/bin/env bash
# quick
# elastic.sh - a run that changes its layout while it trains, and whose rank is killed, has every loss and the
# final state of one that did not.
. "$(dirname "$0")/../lib/train_lib.bash"
text 1 20000 >"$TMP/text"
common=(--data "$TMP/text" --model tiny --steps 100 --seq-len 32 --global-batch 8 --threads 1)
reference

# saw TEXT: waits until the run has said it, or has ended
saw() {
    for _ in $(seq 3000); do
        grep -qF -- "$1" "$TMP/stderr" && return 0
        kill -0 "$job" 2>/dev/null || break
        sleep 0.02
    done
    grep -qF -- "$1" "$TMP/stderr"
}
# wish LINES: the file of the layout, replaced in one step
wish() { printf '%s\n' "$@" >"$TMP/new" && mv "$TMP/new" "$TMP/layout.toml"; }

wish 'ranks = 4' 'tp = 2'
"$BIN/ptrain" "${common[@]}" --out "$TMP/out" --log "$TMP/log.jsonl" --ranks 2 --memory-every 2 \
    --layout-file "$TMP/layout.toml" >"$TMP/stdout" 2>"$TMP/stderr" &
job=$!
claim "a file that differs is taken after the first step" saw "step 1: the ranks end and go on as 4 ranks, tp 2, dp 2"
wish 'tp = "two"'
claim "a file that is no layout is one line" saw "layout.toml: --tp two is not a whole number"
wish 'dp = 3'
claim "so is a layout that does not fit the batch" saw "layout.toml: --global-batch 8 is not a multiple of dp 3"
wish 'pp = 2' 'tp = 1' 'dp = 2' 'zero = 1'
claim "dp names the ranks" saw "go on as 4 ranks, pp 2, dp 2, zero 1, 1f1b"
claim "the digest before and after is reported" saw \
    "layout: 4 ranks, tp 2, dp 2 -> 4 ranks, pp 2, dp 2, zero 1, 1f1b at step"
layouts=$(grep -c '"event":"layout"' "$TMP/log.jsonl") # a layout that dies before its first step would be taken back
until awk '/"event":"layout"/ { n++ } /"loss_bits"/ { if (n == '"$layouts"') found = 1 } END { exit !found }' \
    "$TMP/log.jsonl" || ! kill -0 $job 2>/dev/null; do sleep 0.02; done
kill -9 "$(pgrep -P "$(pgrep -P $job)" | tail -n 1)"
claim "a rank that dies is started again" saw "ptrain: restarted at step"
wait $job
rc=$?
cp "$TMP/stdout" "$TMP/.out"
cp "$TMP/stderr" "$TMP/.err"
claim "the run ends well" [ $rc = 0 ]
claim "with the state of one that stayed as it was" [ "$(state_of "$(cat "$TMP/stdout")")" = "$ref_state" ]
claim "every step is in the log once, with its bits" [ "$(bits_of "$TMP/log.jsonl")" = "$ref_bits" ]
claim "at most two steps were done again" awk '/"event":"restart"/ { n = $0; sub(/.*"again":/, "", n); if (n + 0 > 2) exit 1 }' \
    "$TMP/log.jsonl"

wish 'ranks = 65'
"$BIN/ptrain" "${common[@]}" --steps 100000 --ranks-per-node 1 --out "$TMP/stopped" --layout-file "$TMP/layout.toml" >"$TMP/stdout" 2>"$TMP/stderr" &
job=$!
claim "more machines than state is copied among are one line" saw "65 machines: state in memory is copied among 64 at most"
wish 'ranks = 2'
saw "the ranks end and go on as 2 ranks"
kill -TERM $job
wait $job
claim "a run that is stopped while it changes ends well" [ $? = 0 ]
claim "and is saved" has "$(cat "$TMP/stderr")" "stopped by a signal at step"
run "$BIN/reshard" verify "$(echo "$TMP"/stopped/step-*)"
claim "as a whole checkpoint" [ $rc = 0 ]

run "$BIN/ptrain" "${common[@]}" --out "$TMP/no" --any-bits
claim "--any-bits alone is refused" [ $rc = 2 ]
finish
