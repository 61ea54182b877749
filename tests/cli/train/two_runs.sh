#!/usr/bin/env bash
# quick
# two_runs.sh - one run at a time in a folder: a second one is refused and changes nothing, --resume auto
# waits for a predecessor that dies; and the ranks of a job end with its first process, so that they publish
# nothing behind the next run's back. KILLS=N: so often the first process is killed while a checkpoint is
# written and the run resumed at once (tests/run sets none: 1).
. "$(dirname "$0")/../lib/train_lib.bash"
text 1 20000 >"$TMP/text"
config "$TMP/model.json" vocab_size=256
common=(--data "$TMP/text" --model "$TMP/model.json" --seq-len 31 --global-batch 4 --threads 1)
# begin ARGS...: a run in the background: $job
begin() {
    "$BIN/ptrain" "${common[@]}" --out "$TMP/out" "$@" >"$TMP/first.out" 2>"$TMP/first.err" </dev/null &
    job=$!
}
until_true() { for _ in {1..1500}; do "$@" && return 0; sleep 0.02; done; return 1; }
ranks_of() {
    pgrep -f -- "--out $TMP/out " |
        while read -r p; do grep -qz OMPI_COMM_WORLD_RANK "/proc/$p/environ" 2>/dev/null && echo "$p"; done
}
# one that has ended and that its stopped parent has not waited for (Z) does not live
none_lives() { local p; for p in "$@"; do [[ $(ps -o stat= -p "$p") == [!Z]* ]] && return 1; done; return 0; }
waits() { grep -q "has not ended: waiting for it" "$TMP/second.err"; }

# ---- a second run ----
for ranks in 1 2; do
    rm -rf "$TMP/out"
    begin --steps 100000 --save-every 1 --keep 2 --ranks $ranks
    claim "$ranks ranks: the first run works" until_true [ -d "$TMP/out/step-2" -o -d "$TMP/out/step-3" ]
    run "$BIN/ptrain" "${common[@]}" --out "$TMP/out" --steps 3 --keep 1 --ranks $ranks
    claim "$ranks ranks: a second run is refused" [ $rc = 1 ] &&
        claim "$ranks ranks: in one line" [ "$(wc -l <<<"$err")" = 1 ] &&
        claim "$ranks ranks: which names the first" has "$err" "--out $TMP/out: another run (process "
    claim "$ranks ranks: the first goes on" kill -0 $job
    # --resume auto waits for its end, whatever ends it
    "$BIN/ptrain" "${common[@]}" --out "$TMP/out" --steps 100000 --resume auto --ranks $ranks \
        >"$TMP/second.out" 2>"$TMP/second.err" </dev/null &
    second=$!
    claim "$ranks ranks: --resume auto waits" until_true waits
    kill -KILL $job
    claim "$ranks ranks: and goes on when the first was killed" until_true grep -q "resumed $TMP/out/step-" \
        "$TMP/second.err"
    claim "$ranks ranks: from a checkpoint behind which the first published none" eval \
        '[ "$(sed -n "s/.*resumed .* at step //p" "$TMP/second.err")" = "$(cd "$TMP/out" && ls -d step-* | grep -v tmp | sed s/step-// | sort -n | tail -n 1)" ]'
    kill -KILL $second
    wait $job $second 2>/dev/null
done

# ---- ranks end with the first process, also where mpirun takes no notice of its death ----
rm -rf "$TMP/out"
begin --steps 100000 --save-every 1 --keep 2 --ranks 2
until_true [ -d "$TMP/out/step-2" -o -d "$TMP/out/step-3" ]
mapfile -t pids < <(ranks_of)
mpirun=$(pgrep -P $job)
claim "two ranks work" [ ${#pids[@]} = 2 ]
kill -STOP "$mpirun"
kill -KILL $job
claim "they end when the first process is killed" until_true none_lives "${pids[@]}"
kill -KILL "$mpirun"
wait $job 2>/dev/null
run "$BIN/ptrain" "${common[@]}" --out "$TMP/out" --steps 1 --resume auto
claim "and leave the folder to the next run" [ $rc = 0 ]

# ---- ranks end with a first process that has ended, but not with one of another machine, which they cannot
# see ----
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
boot=$(cat /proc/sys/kernel/random/boot_id 2>/dev/null || echo -)
for of in another $boot; do
    rm -rf "$TMP/out"
    SHARDLINE_LAUNCHER="999999999 1 $of" run timeout -k 5 100 mpirun -q -n 1 "$BIN/ptrain" "${common[@]}" \
        --out "$TMP/out" --steps 1
    [ "$of" = another ] && claim "a first process of another machine does not end the rank" [ $rc = 0 ]
    [ "$of" = "$boot" ] && claim "one that has ended here does" [ $rc != 0 ]
done

# ---- killed while a checkpoint is written, and resumed at once ----
for k in $(seq "${KILLS:-1}"); do
    rm -rf "$TMP/out"
    SHARDLINE_IO_SLOW=5 begin --steps 6 --save-every 1 --ranks 2
    until_true [ -d "$TMP/out/step-2" ]
    kill -KILL $job
    run "$BIN/ptrain" "${common[@]}" --out "$TMP/out" --steps 6 --save-every 1 --ranks 2 --resume auto
    claim "kill $k: the run that is resumed at once ends well" [ $rc = 0 ] &&
        claim "kill $k: nothing is left" [ -z "$(find "$TMP/out" -name '*.tmp-*')" ]
    wait $job 2>/dev/null
done
finish
