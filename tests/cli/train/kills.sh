#!/usr/bin/env bash
# all
# kills.sh - a rank is killed at a random moment, 20 times, in jobs that start again by themselves
# (--restarts): every death is named in one line, and in the end nothing is lost: the log has every step once,
# with the bits of an undisturbed run, and the state is the same. SEED=N: the same moments again.
. "$(dirname "$0")/../lib/train_lib.bash"
text 1 20000 >"$TMP/text"
common=(--data "$TMP/text" --model tiny --steps 80 --seq-len 32 --global-batch 4 --save-every 7)
seed=${SEED:-$RANDOM}
RANDOM=$seed
echo "    SEED=$seed"
train reference --threads 1
claim "the undisturbed run" [ $rc = 0 ] || finish
ref_state=$state ref_bits=$bits

# ranks_of JOB: the processes of its ranks, one a line
ranks_of() {
    local launcher p
    for launcher in $(pgrep -P "$1"); do
        for p in $(pgrep -P "$launcher"); do
            grep -qz '^OMPI_COMM_WORLD_RANK=' "/proc/$p/environ" 2>/dev/null && echo "$p"
        done
    done
}

total=0
layouts=("--ranks 2 --tp 2" "--ranks 2 --zero 3" "--ranks 4 --pp 2 --zero 1 --micro-batch 1" \
    "--ranks 4 --tp 2 --zero 2 --save-async")
for layout in "${layouts[@]}" "${layouts[@]}"; do
    [ $total -lt 20 ] || break
    rm -rf "$TMP/out" "$TMP/log.jsonl"
    "$BIN/ptrain" "${common[@]}" --out "$TMP/out" --log "$TMP/log.jsonl" --threads 1 $layout --restarts 20 \
        >"$TMP/.out" 2>"$TMP/.err" </dev/null &
    job=$! kills=0
    while [ $kills -lt 5 ] && kill -0 $job 2>/dev/null; do
        sleep "$((RANDOM % 2)).$((RANDOM % 900 + 100))"
        mapfile -t pids < <(ranks_of $job)
        [ ${#pids[@]} -gt 0 ] && kill -KILL "${pids[RANDOM % ${#pids[@]}]}" 2>/dev/null &&
            kills=$((kills + 1))
    done
    wait $job
    rc=$? out=$(cat "$TMP/.out")
    total=$((total + kills))
    claim "$layout: $kills kills, and it ends well" [ $rc = 0 ] || continue
    claim "$layout: the end is the same" [ "$(state_of "$out")" = "$ref_state" ]
    claim "$layout: every step is in the log once, with the same bits" [ "$(bits_of "$TMP/log.jsonl")" = \
        "$ref_bits" ]
    again=$(grep -c 'started again' "$TMP/.err")
    claim "$layout: started again after each" [ "$again" -ge 1 ] &&
        claim "$layout: no oftener than that" [ "$again" -le $kills ]
    # a death while the ranks still meet is mpirun's to tell; every other is ours, in one line
    named=$(grep -c '^ptrain: rank [0-9]* died' "$TMP/.err")
    claim "$layout: deaths are named, in a line each ($named of $kills)" [ "$named" -le $kills ]
    claim "$layout: at least one" [ "$named" -ge 1 ]
    broken=0
    for c in "$TMP"/out/step-*[0-9]; do
        [ -d "$c" ] && ! "$BIN/reshard" verify --quick "$c" >/dev/null 2>&1 && broken=$((broken + 1))
    done
    claim "$layout: every checkpoint with a name is whole" [ $broken = 0 ]
    claim "$layout: and nothing is left beside them" [ -z "$(find "$TMP/out" -name '*.tmp-*')" ]
done
# mpirun that takes no notice, as one does whose rank died while it said hello: here it is stopped
rm -rf "$TMP/out" "$TMP/log.jsonl"
"$BIN/ptrain" "${common[@]}" --steps 1000000 --out "$TMP/out" --log "$TMP/log.jsonl" --threads 1 --ranks 2 \
    >"$TMP/.out" 2>"$TMP/.err" </dev/null &
job=$!
for _ in {1..200}; do
    [ "$(grep -c loss_bits "$TMP/log.jsonl" 2>/dev/null)" -ge 1 ] 2>/dev/null && break || sleep 0.1
done
mapfile -t pids < <(ranks_of $job)
kill -STOP "$(pgrep -P $job)"
kill -KILL "${pids[@]}"
begin=$EPOCHREALTIME
wait $job
rc=$?
claim "an mpirun that does not notice is ended: status" [ $rc = 137 ] &&
    claim "and said" grep -q "the ranks are dead and mpirun does not notice" "$TMP/.err"
claim "within 10 s or so" awk -v a="$begin" -v b="$EPOCHREALTIME" 'BEGIN { exit !(b - a < 13) }'

claim "20 kills in all ($total)" [ $total -ge 20 ]
finish
