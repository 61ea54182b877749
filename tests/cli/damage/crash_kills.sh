#!/usr/bin/env bash
# quick
# crash_kills.sh - kill -9 at random moments of a conversion, of saves (also behind training), of a download:
# what has a name is whole, and the next run succeeds. TIMES=1: 20 kills; crash_kills_all.sh: 200.
here=$(cd "$(dirname "$0")" && pwd)
. "$here/../lib/lib.bash"
cd "$TMP" || exit 1
times=${TIMES:-1}
for i in $(seq 200); do echo "line $i: $((i * i)) is the square of $i"; done >text
run ptrain --data text --out run --steps 2 --seq-len 32 --global-batch 4 --threads 1
claim "a model is trained" [ $rc = 0 ] || finish
RANDOM=5
after() { printf '%d.%03d' $(($1 / 1000)) $(($1 % 1000)); }      # milliseconds as seconds
# --foreground: timeout waits until the killed process is gone; until then it holds its lock
killed() { { timeout --foreground -s KILL "$(after "$1")" "$BIN/${@:2}" >/dev/null 2>&1; } 2>/dev/null; }

half=0 whole=0
for i in $(seq $((7 * times))); do
    rm -rf new
    killed $((RANDOM % 150 + 2)) reshard --tp 2 --dp 2 --zero 1 run/step-2 new
    [ -e new ] || { half=$((half + 1)); continue; }
    whole=$((whole + 1))
    run reshard verify new
    claim "conversion, kill $i: what appeared is whole" [ $rc = 0 ]
done
rm -rf new
run reshard --tp 2 --dp 2 --zero 1 run/step-2 new
claim "after $half kills before and $whole after the end, it works" [ $rc = 0 ]
claim "and leaves nothing beside it" [ ! -e new.tmp-save ]

train=(ptrain --data text --out run2 --save-every 1 --keep 2 --resume auto --seq-len 32 --global-batch 4 \
    --threads 1)
for i in $(seq $((7 * times))); do
    killed $((RANDOM % 700 + 100)) "${train[@]}" --steps 100000 $([ $((i % 2)) = 0 ] && echo --save-async)
    for s in run2/step-*; do
        case $s in *'*' | *.tmp-*) continue ;; esac
        run reshard verify "$s"
        claim "save, kill $i: $s is whole" [ $rc = 0 ]
    done
done
newest=$(ls run2 2>/dev/null | sed -n 's/^step-\([0-9]*\)$/\1/p' | sort -n | tail -1)
run "${train[@]}" --steps 100000 --stop-after $((${newest:-0} + 1))
claim "training goes on from step ${newest:-none}" [ $rc = 0 ] &&
    claim "and its checkpoint is whole" "$BIN/reshard" verify "run2/step-$((${newest:-0} + 1))" >/dev/null

if command -v python3 >/dev/null; then
    file_server "$TMP/run/step-2" "$TMP/server.log"
    url=http://127.0.0.1:$port/ok
    half=0 whole=0
    for i in $(seq $((6 * times))); do
        # a kill may leave the marker in the published folder
        killed $((RANDOM % 120 + 10)) reshard fetch "$url" got
        [ -e got ] || { half=$((half + 1)); continue; }
        whole=$((whole + 1))
        claim "download, kill $i: what appeared is whole" diff -r -x .shardline-tmp got run/step-2
        rm -rf got
    done
    [ -e got ] || run reshard fetch "$url" got
    claim "after $half kills before and $whole after the end, it is fetched" [ $rc = 0 ] &&
        claim "to the byte" diff -r -x .shardline-tmp got run/step-2
    claim "and nothing is left beside it" [ ! -e got.tmp-fetch ]
else
    skip "no python3 for a server: no download is killed"
fi
finish
