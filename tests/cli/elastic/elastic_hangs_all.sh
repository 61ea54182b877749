#!/usr/bin/env bash
# all
# elastic_hangs_all.sh - an mpirun whose ranks started early and are gone, and which does not notice, is ended when it has its
# turn, and other ranks go on.
. "$(dirname "$0")/../lib/elastic_lib.bash"
text 1 20000 >"$TMP/text"
common=(--data "$TMP/text" --model tiny --steps 100000 --seq-len 32 --global-batch 8 --threads 1)

# the mpirun of early ranks: holds the job's mpirun back until the first process has seen a child of this one, which ends
# then. The first process has looked when it has slept three times.
mkdir "$TMP/path"
cat >"$TMP/path/mpirun" <<'END'
#!/bin/bash
case $SHARDLINE_LAUNCHER in *" 0") exec "$MPIRUN" "$@" ;; esac
trap '' TERM
cd "$HERE"
slept() { sed -n 's/^voluntary_ctxt_switches:\t//p' "/proc/$PPID/status"; }
others=$(pgrep -P $PPID -x mpirun | grep -vx $$)
kill -STOP $others
mkfifo rank never
cat rank >/dev/null &
before=$(slept)
until [ "$(slept)" -gt $((before + 3)) ]; do read -rt 0.05 <>never; done
: >rank
wait
kill -CONT $others
echo gone >gone
while :; do read -r <>never; done
END
chmod +x "$TMP/path/mpirun"
MPIRUN=$(command -v mpirun)
HERE=$TMP
export MPIRUN HERE
wish 'ranks = 2'
PATH=$TMP/path:$PATH begin hangs --ranks 1
claim "early ranks begin and are gone" until_so test -s "$TMP/gone"
claim "their mpirun is ended" saw "the ranks are dead and mpirun does not notice: it is ended"
claim "the layout is taken by others" saw "layout: 1 rank -> 2 ranks, dp 2 at step"
stepped 1
kill -TERM $job
ends
claim "the run ends well" [ $rc = 0 ]
[ $rc = 0 ] || kill -9 $(pgrep -P $job -x mpirun) $job 2>/dev/null
finish
