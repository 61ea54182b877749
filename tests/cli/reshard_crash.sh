#!/usr/bin/env bash
# quick
# reshard_crash.sh - kill -9 at random moments of a save, a conversion: what has a name is whole, and the next run succeeds.
here=$(cd "$(dirname "$0")" && pwd)
. "$here/lib.bash"
cd "$TMP" || exit 1
for i in $(seq 200); do echo "line $i: $((i * i)) is the square of $i"; done >text
run ptrain --data text --out run --steps 2 --seq-len 32 --global-batch 4
claim "a model is trained" [ $rc = 0 ] || finish
RANDOM=5
half=0 whole=0
for i in $(seq 25); do
    rm -rf new
    timeout -s KILL "0.$(printf %03d $((RANDOM % 200 + 2)))" "$BIN/reshard" --tp 2 --dp 2 --zero 1 run/step-2 new >/dev/null 2>&1
    if [ -e new ]; then
        whole=$((whole + 1))
        run reshard verify new
        claim "kill $i: what appeared is whole" [ $rc = 0 ]
    else
        half=$((half + 1))
    fi
done
rm -rf new
run reshard --tp 2 --dp 2 --zero 1 run/step-2 new
claim "after $half kills before and $whole after the end, it works" [ $rc = 0 ]
claim "and leaves nothing beside it" [ ! -e new.tmp-save ]
for i in $(seq 25); do
    timeout -s KILL "0.$(printf %03d $((RANDOM % 700 + 100)))" "$BIN/ptrain" --data text --out run2 --steps 400 --save-every 1 --keep 2 --resume auto --seq-len 32 \
        --global-batch 4 --threads 1 >/dev/null 2>&1
    for s in run2/step-*; do
        case $s in *'*' | *.tmp-*) continue ;; esac
        run reshard verify "$s"
        claim "save $i: $s is whole" [ $rc = 0 ]
    done
done
ls -d run2/step-* >/dev/null 2>&1 || { skip "this machine saved nothing in time"; finish; }
run reshard inspect "$(ls -d run2/step-* | grep -v tmp | sort -t- -k2 -n | tail -1)" --json
step=$(sed -n 's/.*"step":\([0-9]*\).*/\1/p' <<<"$out")
run ptrain --data text --out run2 --steps 400 --stop-after $((${step:-0} + 1)) --resume auto --seq-len 32 --global-batch 4
claim "training goes on from step ${step:-?}" [ $rc = 0 ]
finish
