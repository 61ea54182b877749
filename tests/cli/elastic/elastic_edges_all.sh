#!/usr/bin/env bash
# all
# elastic_edges_all.sh - what a change of layout meets: files that are half written or ask for the impossible, processes that
# are killed in its midst, a second change, SIGHUP. The run goes on in the old layout or in the new one, with its bits.
. "$(dirname "$0")/../lib/elastic_lib.bash"
text 1 20000 >"$TMP/text"
common=(--data "$TMP/text" --model tiny --steps 100000 --seq-len 32 --global-batch 8 --threads 1)

wish 'ranks = 2'
begin edges --ranks 2 --ranks-per-node 1
until_so test -s "$log"
n_lines=$(wc -l <"$TMP/stderr")
# refused WHAT TEXT: the file as it is now is refused with one line, which has TEXT
refused() {
    claim "$1 is refused" saw "$2" &&
        claim "$1: one line" [ "$(grep -c 'the layout stays' "$TMP/stderr")" = $((++n_refused)) ]
}
n_refused=0
wish 'ranks = 4' 'tp = '
refused "a file that is half written" "layout.toml"
wish 'ranks = 4' 'tp = 3'
refused "a number of ranks that does not fit" "4 ranks are not a multiple of tp 3 x pp 1 x cp 1"
wish 'ranks = 4' 'dp = 3'
refused "two numbers that contradict each other" "leave ranks or dp out"
wish 'tp = 1000000'
refused "a number out of range" "--tp 1000000"
wish 'ranks = 16' 'pp = 16'
refused "more stages than layers" "pp 16"
rm "$TMP/layout.toml"
kill -HUP $job
refused "no file at all" "the layout stays: cannot open"

# the machines' keepers end, and what is kept next is copied to new ones
keepers() { pgrep -P $job -x keeper; }
kill -9 $(keepers)
two_keepers() { [ "$(keepers | wc -l)" = 2 ]; }
claim "keepers that are killed are started again" until_so two_keepers

# mpirun of the new ranks ends before their first step, of those that start early and of those in their turn: back to the
# old layout, until SIGHUP
wish 'ranks = 2' 'tp = 2'
kill_new() {
    local p
    for p in $(pgrep -P $job -f '^mpirun .* --tp=2 '); do kill -9 "$p"; done
    said "back to the old one"
}
claim "a layout whose ranks die gives way" until_so kill_new
claim "when they have died twice" said "before their first step: started again"
kill -HUP $job
claim "SIGHUP tries it once more" saw "-> 2 ranks, tp 2 at step"

# a second change, while one is under way
wish 'ranks = 4' 'tp = 2'
saw "go on as 4 ranks, tp 2"
wish 'ranks = 4' 'pp = 2' 'tp = 1'
claim "a second change follows the first one" saw "4 ranks, tp 2, dp 2 -> 4 ranks, pp 2, dp 2, 1f1b at step"
stepped 3
stopped_as_reference "all of this"

# a rank that dies while the first step of a new layout is evaluated, which takes seconds: the layout has been proven
text 2 300000 >"$TMP/long"
wish 'ranks = 2'
begin evaluated --ranks 1 --restarts 1 --eval-every 2 --eval-data "$TMP/long"
until_so test -s "$log"
stepped 1
kill -9 "$(pgrep -P "$(pgrep -P $job -x mpirun)" | tail -n 1)"
claim "a rank that dies in an evaluation is started again" saw "ptrain: restarted at step 1, 1 finished steps again"
kill -TERM $job
ends
claim "the run that was evaluated ends well" [ $rc = 0 ]

# the first process ends in the midst of a change, and the run goes on from --out
common+=(--steps 150)
reference
wish 'ranks = 2'
begin killed --ranks 1 --save-every 10
until_so test -e "$TMP/killed/step-10"
wish 'ranks = 2' 'tp = 2'
saw "go on as 2 ranks, tp 2"
pids=$(pgrep -f "$TMP/killed" | grep -vx $job)
kill -9 $job
wait $job 2>/dev/null
gone() { ! grep -qs "^State:.[^Z]" $(printf "/proc/%s/status " $pids); }
for _ in $(seq 500); do gone && break; sleep 0.02; done
claim "its ranks end with it" gone
mv "$TMP/killed.jsonl" "$TMP/before.jsonl"
mv "$TMP/killed" "$TMP/kept"
wish 'ranks = 2' 'tp = 2'
run "$BIN/ptrain" "${common[@]}" --out "$TMP/kept" --log "$TMP/kept.jsonl" --resume auto --layout-file "$TMP/layout.toml"
claim "the run goes on from --out" [ $rc = 0 ]
claim "to the same state" [ "$(state_of "$out")" = "$ref_state" ]
finish
