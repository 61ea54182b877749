#!/usr/bin/env bash
# quick
# offload_kills.sh - kill -9 in every phase of steps with --offload DIR and of their saves, in changing layouts: what
# has a name is whole, and the run goes on to the bits of one that nobody killed. KILLS=4; offload_kills_all.sh: 200.
. "$(dirname "$0")/../lib/train_lib.bash"
text 5 30000 >"$TMP/text"
config "$TMP/model.json" vocab_size=256
kills=${KILLS:-4} end=30
common=(--data "$TMP/text" --model "$TMP/model.json" --steps $end --seq-len 32 --global-batch 4 --threads 1)
reference
# a disk that is slow: kills meet reads, writes and the computation between them
export SHARDLINE_IO_SLOW=5
layouts=("" "--ranks 2 --zero 1" "--ranks 2 --zero 3" "--pp 2 --micro-batch 1")
RANDOM=${SEED:-11}

# killed MS LAYOUT...: a part of the run, in a session of its own, killed so long after a step; $rc 137: it was
killed() {
    local ms=$1 pid
    shift
    rm -f "$TMP/log"
    setsid "$BIN/ptrain" "${common[@]}" "$@" --out "$TMP/run" --save-every 2 --keep 2 --resume auto \
        --offload "$TMP/disk" --log "$TMP/log" >"$TMP/.out" 2>"$TMP/.err" &
    pid=$!
    for _ in {1..400}; do grep -qs '"loss":' "$TMP/log" && break; kill -0 $pid || break; sleep 0.02; done
    sleep "$(printf '%d.%03d' $((ms / 1000)) $((ms % 1000)))"
    kill -9 -$pid $pid 2>/dev/null
    wait $pid
    rc=$? out=$(cat "$TMP/.out")
} 2>/dev/null

ended=0 killed=0 resumed=0
for i in $(seq "$kills"); do
    read -r -a words <<<"${layouts[$((i % 4))]}"
    killed $((RANDOM % 900 + 200)) "${words[@]}"
    [ $rc = 0 ] && ended=$((ended + 1)) || killed=$((killed + 1))
    for s in "$TMP"/run/step-*; do
        case $s in *'*' | *.tmp-*) continue ;; esac
        run reshard verify "$s"
        claim "kill $i (${words[*]}): $s is whole" [ $rc = 0 ]
        resumed=$((resumed + 1))
    done
    # what was begun goes on to the end now and then, else it is killed again
    [ $((i % 5)) = 0 ] || [ "$i" = "$kills" ] || [ -e "$TMP/run/step-$end" ] || continue
    [ -e "$TMP/run/step-$end" ] ||
        run timeout -k 5 100 "$BIN/ptrain" "${common[@]}" --out "$TMP/run" --resume auto --offload "$TMP/disk"
    claim "kill $i: the run goes on to the end" [ -e "$TMP/run/step-$end" ] &&
        claim "kill $i: with the bits of one that nobody killed" [ "$("$BIN/reshard" digest "$TMP/run/step-$end" |
            sed -n 's/state_digest //p')" = "$ref_state" ]
    rm -rf "$TMP/run"
done
claim "runs were killed ($killed, $ended ended before)" [ $killed -gt 0 ]
claim "and left checkpoints ($resumed)" [ $resumed -gt 0 ]
claim "no file is left by the last one" [ -z "$(ls -A "$TMP/disk")" ]
finish
