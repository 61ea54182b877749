#!/usr/bin/env bash
# all long
# two_hosts.sh - two machines made of namespaces, with names, /dev/shm and SSH servers of their own and a link
# between them (hosts.bash): mpirun over TCP gives the bits of one machine, sums inside a machine first; when
# the link is cut while a step runs, all ranks end within --rank-timeout and the line says why, and the run
# resumes; reshard and pserve --tp work across both.
. "$(dirname "$0")/../lib/train_lib.bash"
. "$(dirname "$0")/hosts.bash"
hosts_open || { skip "$why"; finish; }
text 1 20000 >"$TMP/text"
common=(--data "$TMP/text" --model tiny --steps 6 --seq-len 32 --global-batch 8 --threads 1)
reference
mpi=(mpirun --hostfile "$TMP/hostfile" -n 4 --map-by slot --bind-to none)
run on hosta "${mpi[@]}" hostname
claim "ranks on both" [ "$(sort <<<"$out" | xargs)" = "hosta hosta hostb hostb" ]

# layouts, with the bytes that cross the link in the steps: a run of 6 steps less one of 2
crossed() {                 # ARGS...: fills $out of the longer run and $bytes a step
    local short before
    before=$(link_bytes)
    run timeout 120 nsenter --target "${host_pid[hosta]}" --net --uts --ipc --mount -- "${mpi[@]}" \
        "$BIN/ptrain" "${common[@]}" --stop-after 2 --out "$TMP/short" "$@"
    short=$(($(link_bytes) - before)) before=$(link_bytes)
    run timeout 120 nsenter --target "${host_pid[hosta]}" --net --uts --ipc --mount -- "${mpi[@]}" \
        "$BIN/ptrain" "${common[@]}" --out "$TMP/whole" "$@"
    bytes=$((($(link_bytes) - before - short) / 4))
    rm -rf "$TMP/short" "$TMP/whole"
}
for layout in "--tp 1" "--tp 2 --zero 1" "--tp 4" "--pp 2 --zero 3" "--tp 1 --transport mpi"; do
    crossed $layout
    claim "$layout on two hosts" [ $rc = 0 ] &&
        claim "$layout: the same state as one rank" [ "$(state_of "$out")" = "$ref_state" ]
    echo "$layout: $bytes bytes cross the link in a step"
    # gradients of 990,848 parameters: 2 (machines - 1) buffers of 4 bytes each; flat it would be three times
    # as many
    [ "$layout" != "--tp 1" ] ||
        claim "sums inside a host first" [ "$bytes" -gt 7500000 -a "$bytes" -lt 11000000 ]
    [ "$layout" != "--tp 4" ] || claim "a tp group over both hosts is named" has "$err" "tp 4 spans machines"
done

# the link is cut in the middle of a step
on hosta "${mpi[@]}" "$BIN/ptrain" "${common[@]}" --steps 100000 --out "$TMP/cut" --save-every 5 --keep 2 \
    --rank-timeout 5 --log "$TMP/cut.jsonl" >"$TMP/cut.out" 2>"$TMP/cut.err" &
job=$!
for _ in {1..600}; do [ -e "$TMP/cut/step-5/manifest.json" ] && break; sleep 0.1; done
link_down
begin=$SECONDS
for _ in {1..300}; do
    pgrep -f "ptrain.*--out $TMP/cut " | xargs -r ps -o comm= -p 2>/dev/null | grep -q ptrain ||
        break; sleep 0.1
done
claim "all ranks of both hosts end within 15 s" [ $((SECONDS - begin)) -le 15 ]
claim "and the cause is named" grep -qE \
    "rank [0-9] on host[ab] has waited [0-9]+ s for ranks of other machines: is the network between them up" \
        "$TMP/cut.err"
claim "once" [ "$(grep -c 'has waited' "$TMP/cut.err")" = 1 ]
for _ in {1..600}; do kill -0 $job 2>/dev/null || break; sleep 0.1; done
claim "mpirun ends, too" eval '! kill -0 $job 2>/dev/null' || kill -9 $job
wait $job
rc=$?
claim "with an error" [ $rc != 0 ]
link_up
newest=$(ls "$TMP/cut" | sed -n 's/^step-//p' | sort -n | tail -1)
run on hosta "${mpi[@]}" "$BIN/ptrain" --data "$TMP/text" --out "$TMP/cut" --resume auto --threads 1 \
    --stop-after $((newest + 2)) --tp 2
claim "the run resumes on both hosts" [ $rc = 0 ] &&
    claim "where it was" has "$err" "resumed $TMP/cut/step-$newest at step $newest"
state=$(state_of "$out")
run "$BIN/ptrain" "${common[@]}" --steps 100000 --stop-after $((newest + 2)) --out "$TMP/uncut"
claim "to the state of a run that was never cut" [ "$(state_of "$out")" = "$state" ]

# the shared folder: a conversion by both hosts, and a server over both
run on hosta "${mpi[@]}" "$BIN/reshard" --tp 4 "$TMP/uncut/step-$((newest + 2))" "$TMP/tp4"
claim "mpirun reshard" [ $rc = 0 ]
run "$BIN/reshard" diff "$TMP/uncut/step-$((newest + 2))" "$TMP/tp4"
claim "gives the same tensors" [ $rc = 0 ]
start_on hosta "${mpi[@]}" "$BIN/pserve" "$TMP/tp4" --tp 4 --port 0 --threads 1 --model-name m \
    >"$TMP/serve.out" 2>"$TMP/serve.err" &
job=$!
for _ in {1..300}; do
    port=$(sed -n 's/.*ready on http:\/\/127\.0\.0\.1:\([0-9]*\).*/\1/p' "$TMP/serve.out")
    [ -n "$port" ] && break; sleep 0.1
done
claim "pserve --tp 4 over both hosts is ready" [ -n "${port:-}" ]
body='{"model":"m","prompt":"the model","max_tokens":12,"temperature":0,"logprobs":1}'
run on hosta curl -sS "http://127.0.0.1:$port/v1/completions" -H 'Content-Type: application/json' -d "$body"
both=$(grep -o '"choices":.*"usage"' <<<"$out")
kill -TERM $job
wait $job
claim "SIGTERM to mpirun ends it" eval '! pgrep -f "pserve $TMP/tp4" >/dev/null'
"$BIN/pserve" "$TMP/tp4" --port 0 --threads 1 --model-name m >"$TMP/one.out" 2>/dev/null &
job=$!
for _ in {1..300}; do
    port=$(sed -n 's/.*ready on http:\/\/127\.0\.0\.1:\([0-9]*\).*/\1/p' "$TMP/one.out"); [ -n "$port" ] &&
        break; sleep 0.1
done
run curl -sS "http://127.0.0.1:$port/v1/completions" -H 'Content-Type: application/json' -d "$body"
claim "its answer has the bits of one rank's" [ -n "$both" -a "$(grep -o '"choices":.*"usage"' <<<"$out")" = \
    "$both" ]
kill $job
finish
