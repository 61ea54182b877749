#!/usr/bin/env bash
# quick
# elastic.sh - a run that changes its layout while it trains, and whose rank is killed, has every loss and the
# final state of one that did not. It trains until it has been seen to do all that, and is stopped then.
. "$(dirname "$0")/../lib/elastic_lib.bash"
text 1 20000 >"$TMP/text"
common=(--data "$TMP/text" --model tiny --steps 100000 --seq-len 32 --global-batch 8 --threads 1)

ranks() { pgrep -P "$(pgrep -P $job -x mpirun | paste -sd,)"; }
# came_early: the ranks of the job were started while the ones before them had their state
came_early() { tr '\0' '\n' <"/proc/$(ranks | head -n 1)/environ" | grep -q '^SHARDLINE_LAUNCHER=.* [1-9][0-9]*$'; }
n_early=0
# alone: nothing of the run is left behind
alone() { ! pgrep -f "$TMP/$1 " >/dev/null; }
none_left() { for _ in $(seq 500); do alone "$1" && return 0; sleep 0.02; done; pgrep -af "$TMP/$1 "; return 1; }

wish 'ranks = 4' 'tp = 2'
begin out --ranks 2 --memory-every 2
claim "a file that differs is taken after the first step" saw "step 1: the ranks end and go on as 4 ranks, tp 2, dp 2"
saw "layout: 2 ranks, dp 2 -> 4 ranks, tp 2, dp 2 at step" && came_early && n_early=$((n_early + 1))
wish 'tp = "two"'
claim "a file that is no layout is one line" saw "layout.toml: --tp two is not a whole number"
wish 'dp = 3'
claim "so is a layout that does not fit the batch" saw "layout.toml: --global-batch 8 is not a multiple of dp 3"
wish 'pp = 2' 'tp = 1' 'dp = 2' 'zero = 1'
claim "dp names the ranks" saw "go on as 4 ranks, pp 2, dp 2, zero 1, 1f1b"
claim "the digest before and after is reported" saw \
    "layout: 4 ranks, tp 2, dp 2 -> 4 ranks, pp 2, dp 2, zero 1, 1f1b at step"
came_early && n_early=$((n_early + 1))
claim "the ranks of a new layout are started early" [ $n_early -gt 0 ]
stepped 2 # a layout that dies before its first step would be taken back
kill -9 "$(ranks | tail -n 1)"
claim "a rank that dies is started again" saw "ptrain: restarted at step"
has_restarted() { awk '/"event":"restart"/ { n = 1 } /"loss_bits"/ && n { ok = 1 } END { exit !ok }' "$log"; }
until_so has_restarted
stopped_as_reference "the run"
claim "it leaves no process behind" none_left out
claim "at most two steps were done again" awk '/"event":"restart"/ { n = $0; sub(/.*"again":/, "", n); if (n + 0 > 2) exit 1 }' "$log"

wish 'ranks = 65'
begin stopped --ranks-per-node 1
claim "more machines than state is copied among are one line" saw "65 machines: state in memory is copied among 64 at most"
wish 'ranks = 2'
saw "the ranks end and go on as 2 ranks"
kill -TERM $job
ends
claim "a run that is stopped while it changes ends well" [ $rc = 0 ]
claim "leaves no process behind" none_left stopped
claim "and is saved" has "$err" "stopped by a signal at step"
run "$BIN/reshard" verify "$(echo "$TMP"/stopped/step-*)"
claim "as a whole checkpoint" [ $rc = 0 ]

run "$BIN/ptrain" "${common[@]}" --out "$TMP/no" --any-bits
claim "--any-bits alone is refused" [ $rc = 2 ]
finish
