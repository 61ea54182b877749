#!/usr/bin/env bash
# quick
# in_memory.sh - a checkpoint in memory (mem:PID/SET) is read by every program as its folder is: the same digests, layouts, run and answers.
. "$(dirname "$0")/../lib/train_lib.bash"
text 2 20000 >"$TMP/text"
config "$TMP/model.json" vocab_size=256
common=(--data "$TMP/text" --model "$TMP/model.json" --steps 4 --seq-len 31 --global-batch 4 --lr 0.01 --warmup 2 --threads 1)
run "$BIN/ptrain" "${common[@]}" --out "$TMP/ref"
ref_state=$(state_of "$out")
run "$BIN/ptrain" "${common[@]}" --ranks 2 --tp 2 --zero 1 --stop-after 2 --out "$TMP/half"
claim "a run stops half way" [ $rc = 0 ]
half=$TMP/half/step-2

coproc HOLD { exec python3 "$(dirname "$0")/../lib/memory_hold.py" "$half" step-2; }
holder=$HOLD_PID
read -r pid <&"${HOLD[0]}"
mem=mem:$pid/step-2

run reshard digest "$half"
want=$out
run reshard digest "$mem"
claim "its digests are those of the folder" [ "$out" = "$want" ]
run reshard digest "mem:$pid"
claim "mem:PID is its newest set" [ "$out" = "$want" ]
run reshard verify "$mem"
claim "verify reads every byte" [ $rc = 0 ]
run reshard --tp 4 --pp 1 "$mem" "$TMP/moved"
claim "it is resharded" [ $rc = 0 ]
run reshard digest "$TMP/moved"
claim "to the same digests" [ "$out" = "$want" ]
run "$BIN/ptrain" "${common[@]}" --resume "$mem" --out "$TMP/on" --ranks 2
claim "a run goes on from it in another layout, to the same state" [ "$(state_of "$out")" = "$ref_state" ]
run "$BIN/pserve" "$half" --once "ab" --max-tokens 4
want_answer=$out
run "$BIN/pserve" "$mem" --once "ab" --max-tokens 4
claim "the server answers as from the folder" [ $rc = 0 -a "$out" = "$want_answer" ]
run reshard digest "mem:$pid/step-3"
claim "a set that is not there: the message says what is" has "$err" "keeps no such set: it has step-2"

"$BIN/reshard" --format serve "$half" "$TMP/serve" >/dev/null
"$BIN/pshare" "$TMP/serve" --port 0 >"$TMP/ready" &
share=$!
until url=$(sed -n 's/^pshare: ready on \(http:[^ ]*\) .*/\1/p' "$TMP/ready") && [ -n "$url" ]; do
    kill -0 $share || break
    sleep 0.02
done
run "$BIN/pserve" "$TMP/serve" --once "ab" --max-tokens 4
claim "the serve format answers as the checkpoint does" [ $rc = 0 -a "$out" = "$want_answer" ]
run "$BIN/pserve" "$url" --once "ab" --max-tokens 4
claim "and so it does from pshare, where its files are not on this machine" [ $rc = 0 -a "$out" = "$want_answer" ]
kill $share
wait $share

kill -9 "$holder"
wait "$holder" 2>/dev/null
run reshard digest "$mem"
claim "it ends with its keeper, in one line" [ $rc = 1 -a "$(wc -l <<<"$err")" = 1 ]
claim "which says so" has "$err" "has ended"
finish
