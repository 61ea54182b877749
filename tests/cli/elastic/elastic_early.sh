#!/usr/bin/env bash
# quick
# elastic_early.sh - what an elastic run starts beside its ranks and loses: ranks that start early, keepers of machines, and a
# stop that comes before new ranks have done a step.
. "$(dirname "$0")/../lib/elastic_lib.bash"
text 1 20000 >"$TMP/text"
common=(--data "$TMP/text" --model tiny --steps 100000 --seq-len 32 --global-batch 8 --threads 1)

# ranks that start early find no memory beside those that run: an mpirun that fails for them
mkdir "$TMP/path"
printf '#!/bin/sh\ncase $SHARDLINE_LAUNCHER in *" 0") exec %s "$@" ;; esac\necho "no memory here" >&2\nexit 1\n' \
    "$(command -v mpirun)" >"$TMP/path/mpirun"
chmod +x "$TMP/path/mpirun"
wish 'ranks = 2'
PATH=$TMP/path:$PATH begin early --ranks 1 --ranks-per-node 1
claim "a layout whose early ranks fail is taken when the ranks before them are gone" saw "layout: 1 rank -> 2 ranks, dp 2 at step"
claim "and is not refused" [ "$(grep -c 'back to the old one' "$TMP/stderr")" = 0 ]

# keepers that cannot start: their first process has no descriptor for them
keepers() { pgrep -P $job -x keeper; }
two_keepers() { [ "$(keepers | wc -l)" = 2 ]; }
claim "each machine has a keeper" until_so two_keepers
stepped 1
prlimit --pid $job --nofile=3:
kill -9 "$(keepers | head -n 1)"
claim "keepers that end at once are given up" saw "keepers of machines ended 3 times at once"
prlimit --pid $job --nofile=1024:
wish 'ranks = 1'
claim "a state that cannot be kept is a line" saw "the layout stays: "
kill -TERM $job
ends
claim "and the run goes on to its end" [ $rc = 0 ]
claim "in one line" [ "$(grep -c 'keepers of machines' "$TMP/stderr")" = 1 ]

# a stop that comes before a layout whose ranks fail: the old ones go on from memory, do a step and save it
printf '#!/bin/sh\ncase "$*" in *--tp=2*) until [ -e "%s/stopped" ]; do sleep 0.02; done; exit 1 ;; esac\nexec %s "$@"\n' \
    "$TMP" "$(command -v mpirun)" >"$TMP/path/mpirun"
wish 'ranks = 2' 'tp = 2'
PATH=$TMP/path:$PATH begin refused --ranks 1
saw "go on as 2 ranks, tp 2"
kill -TERM $job
touch "$TMP/stopped"
ends
claim "a run that is stopped before a layout that fails ends well" [ $rc = 0 ]
claim "goes back" has "$err" "back to the old one"
run "$BIN/reshard" verify "$(echo "$TMP"/refused/step-*)"
claim "and is saved" [ $rc = 0 ]

# a stop that comes while ranks that resume from memory wait for --out: they do a step and save it
wish 'ranks = 1'
begin held --ranks 1
until_so test -s "$log"
exec 9<"$TMP/held/.ptrain.lock"
flock -s 9
wish 'ranks = 2'
claim "ranks of the new layout wait" saw "held: another run"
kill -TERM $job
exec 9<&-
ends
claim "a run that is stopped before its first step from memory ends well" [ $rc = 0 ]
claim "is not ended at once" [ "$(grep -c 'nothing was trained' "$TMP/stderr")" = 0 ]
claim "does a step" has "$err" "layout: 1 rank -> 2 ranks, dp 2 at step"
run "$BIN/reshard" verify "$(echo "$TMP"/held/step-*)"
claim "and saves it" [ $rc = 0 ]
finish
