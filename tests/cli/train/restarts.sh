#!/usr/bin/env bash
# quick
# restarts.sh - --restarts: a job whose rank dies is started again from its newest whole checkpoint, and ends
# with the bits of one that never died.
. "$(dirname "$0")/../lib/train_lib.bash"
text 1 20000 >"$TMP/text"
common=(--data "$TMP/text" --model tiny --steps 30 --seq-len 32 --global-batch 4 --threads 1 --save-every 3)
reference

# kill one rank of the job at different moments, the job's parent must bring it back
for ranks in 1 2; do
    rm -rf "$TMP/out" "$TMP/log.jsonl"
    "$BIN/ptrain" "${common[@]}" --out "$TMP/out" --log "$TMP/log.jsonl" --ranks $ranks --restarts 3 \
        >"$TMP/stdout" 2>"$TMP/stderr" &
    parent=$!
    for kill_at in 6 15; do
        for _ in $(seq 600); do
            [ -d "$TMP/out/step-$kill_at" ] && break
            sleep 0.02
        done
        rank=$(pgrep -f -- "--out $TMP/out " | while read -r p; do [ "$p" != $parent ] &&
            grep -qz OMPI_COMM_WORLD_RANK "/proc/$p/environ" 2>/dev/null && echo "$p"; done | tail -n 1)
        [ -n "$rank" ] && kill -9 "$rank"
    done
    wait $parent
    rc=$?
    cp "$TMP/stdout" "$TMP/.out"
    cp "$TMP/stderr" "$TMP/.err"
    claim "$ranks ranks: the job ends well" [ $rc = 0 ]
    claim "$ranks ranks: it was started again" grep -q "started again, 1 of 3" "$TMP/stderr"
    claim "$ranks ranks: the end is the same" [ "$(state_of "$(cat "$TMP/stdout")")" = "$ref_state" ]
    claim "$ranks ranks: so is every step of the log" [ "$(bits_of "$TMP/log.jsonl")" = "$ref_bits" ]
done

run "$BIN/ptrain" "${common[@]}" --out "$TMP/no" --ranks 2 --restarts 3 --tp 3
claim "wrong usage is not tried again" [ $rc = 2 ]
claim "and says so once" [ "$(wc -l <<<"$err")" = 1 ]
run "$BIN/ptrain" --data "$TMP/text" --model tiny --steps 30 --seq-len 32 --global-batch 4 --threads 1 --out \
    /proc/no --ranks 2 --restarts 2
claim "a job that fails for ever ends" [ $rc = 1 ]
claim "after the restarts it was given" [ "$(grep -c 'started again' <<<"$err")" = 2 ]
finish
