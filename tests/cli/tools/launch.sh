#!/usr/bin/env bash
# all
# launch.sh - the launch examples of train/README.md as far as one machine goes: a hostfile; tp inside a
# machine, by default and said where it is not (machines made of every N ranks); what a scheduler's signal
# does; requeue with --resume auto on another number of ranks.
. "$(dirname "$0")/../lib/train_lib.bash"
text 1 20000 >"$TMP/text"
common=(--data "$TMP/text" --model tiny --steps 8 --seq-len 32 --global-batch 8 --threads 1)
reference
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_btl=self,vader,tcp

echo "localhost slots=4" >"$TMP/hosts"
run mpirun --hostfile "$TMP/hosts" -n 4 --map-by slot --bind-to none "$BIN/ptrain" "${common[@]}" --tp 2 \
    --out "$TMP/hostfile"
claim "mpirun with a hostfile" [ $rc = 0 ] &&
    claim "ends in the same state" [ "$(state_of "$out")" = "$ref_state" ]

# ranks are numbered tp fastest: two machines of 4 ranks hold two tp groups of 2 each, and no tp group is cut
for layout in "--tp 2" "--tp 4" "--tp 2 --pp 2"; do
    run "$BIN/ptrain" "${common[@]}" --ranks 8 $layout --micro-batch 1 --ranks-per-node 4 --out \
        "$TMP/inside${layout// /}"
    claim "$layout on machines of 4: tp stays inside" [ $rc = 0 ] &&
        claim "$layout on machines of 4: nothing to say" eval '[[ $err != *"spans machines"* ]]'
    claim "$layout on machines of 4: the same state" [ "$(state_of "$out")" = "$ref_state" ]
done
run "$BIN/ptrain" "${common[@]}" --ranks 8 --tp 8 --ranks-per-node 4 --out "$TMP/across"
claim "--tp 8 on machines of 4 runs" [ $rc = 0 ] &&
    claim "and says what to change" has "$err" \
        "tp 8 spans machines (4 ranks of a group on this one): its sums, two a layer, go over the network: use --tp 4 or less"
claim "once" [ "$(grep -c 'spans machines' <<<"$err")" = 1 ]
claim "to the same state" [ "$(state_of "$out")" = "$ref_state" ]

# what Slurm sends before the end of the time, and the next job with other ranks
"$BIN/ptrain" "${common[@]}" --steps 100000 --out "$TMP/out" --log "$TMP/log.jsonl" --ranks 4 --tp 2 \
    >"$TMP/.out" 2>"$TMP/.err" </dev/null &
job=$!
for _ in {1..200}; do
    [ "$(grep -c loss_bits "$TMP/log.jsonl" 2>/dev/null)" -ge 3 ] 2>/dev/null && break || sleep 0.05
done
begin=$EPOCHREALTIME
kill -USR1 $job
wait $job
rc=$?
claim "SIGUSR1: saved, and status 0" [ $rc = 0 ] &&
    claim "SIGUSR1: within 10 s" awk -v a="$begin" -v b="$EPOCHREALTIME" 'BEGIN { exit !(b - a < 10) }'
n=$(grep -c loss_bits "$TMP/log.jsonl")
run "$BIN/ptrain" --data "$TMP/text" --out "$TMP/out" --log "$TMP/log.jsonl" --ranks 2 --zero 1 --threads 1 \
    --resume auto --stop-after $((n + 2))
claim "the requeued job goes on with two ranks" [ $rc = 0 ] &&
    claim "from where it was" has "$err" "resumed $TMP/out/step-$n at step $n"
claim "its log has every step once" [ "$(grep -c loss_bits "$TMP/log.jsonl")" = $((n + 2)) ]

finish
