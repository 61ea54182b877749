#!/usr/bin/env bash
# quick
# publish.sh - --publish: versions are the checkpoints of their steps, served while training goes on; what is killed leaves a whole version.
. "$(dirname "$0")/../lib/train_lib.bash"
text 2 40000 >"$TMP/text"
config "$TMP/model.json" vocab_size=256
export SHARDLINE_CACHE=$TMP/cache
common=(--data "$TMP/text" --model "$TMP/model.json" --seq-len 31 --global-batch 4 --lr 0.01 --warmup 2 --threads 1)
digest() { "$BIN/reshard" digest "$1" | sed -n 's/^weights_digest //p'; }
published() { sed -n 's/.*"event":"publish","step":'"$2"',"weights_digest":"\([0-9a-f]*\)".*/\1/p' "$1"; }

# versions and saves of the same steps
layout() {
    rm -rf "$TMP/run" "$TMP/log"
    run "$BIN/ptrain" "${common[@]}" --steps 4 --save-every 2 --publish 127.0.0.1:0 --publish-every 2 --out "$TMP/run" --log "$TMP/log" "$@"
    claim "$*: the run ends well" [ $rc = 0 ]
    for step in 2 4; do
        d=$(digest "$TMP/run/step-$step")
        claim "$*: version $step has the digest of the checkpoint" [ -n "$d" -a "$(published "$TMP/log" $step)" = "$d" ]
    done
}
layout --ranks 2 --tp 2 --dtype bf16
claim "the log has the time that training waited, and that of the copy" \
    [ "$(grep '"event":"publish"' "$TMP/log" | grep -c '"stall_ms":[0-9.e+-]*,"copy_ms":[0-9]')" = 3 ]
plain=$(state_of "$out")
layout --ranks 2 --zero 3 --dtype bf16
claim "training's bits are those of another layout" [ "$(state_of "$out")" = "$plain" ]
run "$BIN/ptrain" "${common[@]}" --steps 4 --dtype bf16 --out "$TMP/none"
claim "and those of a run without --publish" [ "$(state_of "$out")" = "$plain" ]

# begin ARGS...: a run of many steps from step-2, whose one version is that checkpoint; fills $url, $pid
begin() {
    rm -rf "$TMP/long" "$TMP/err"
    "$BIN/ptrain" "${common[@]}" --dtype bf16 --steps 4000000 --resume "$TMP/run/step-2" --publish 127.0.0.1:0 --publish-every 4000000 --out "$TMP/long" "$@" \
        >/dev/null 2>"$TMP/err" &
    pid=$!
    until url=$(sed -n 's/.*are at \(http:[^ ]*\)$/\1/p' "$TMP/err") && [ -n "$url" ]; do
        kill -0 $pid 2>/dev/null || return 1
        sleep 0.05
    done
    curl -s "$url/version?after=1&timeout=60" >"$TMP/version"
}
gone() { while curl -s -o "$TMP/ignored" "$1/health"; do sleep 0.05; done; }

begin --ranks 2 --tp 2
d=$(digest "$TMP/run/step-2")
claim "GET /version names step and digest" has "$(cat "$TMP/version")" "\"version\":2,\"weights_digest\":\"$d\""
claim "the URL is a checkpoint with that digest" [ "$(digest "$url")" = "$d" ]
run "$BIN/reshard" verify "$url"
claim "verify reads it" [ $rc = 0 ]
run curl -s -o "$TMP/body" -w '%{http_code}' -H 'If-Match: "1-0123"' "$url/config.json"
claim "another version is a 412" [ "$out" = 412 ]
run curl -s -o "$TMP/body" -w '%{http_code}' "$url/optim-00000.safetensors"
claim "the optimizer's files are not served" [ "$out" = 404 ]
claim "nothing of it is kept on the disk" [ ! -e "$TMP/cache" ]

kill -9 $pid
wait $pid 2>/dev/null
gone "$url"
claim "pshare ends with the first process" true

begin
share=$(pgrep -f "pshare mem:$pid/live- " | head -n 1)
kill -9 "$share"
gone "$url"
kill -TERM $pid
wait $pid
claim "a run whose pshare was killed goes on and ends well" [ $? = 0 ]

run "$BIN/pshare" mem:4194305/live- --end-with-source --port 0
claim "a process that cannot be watched is one line, before pshare is ready" \
    [ $rc = 1 -a -z "$out" -a "$(grep -c 'its process cannot be watched' <<<"$err")" = 1 ]

run "$BIN/ptrain" "${common[@]}" --steps 4 --publish nowhere --out "$TMP/bad"
claim "an address without a port: one line" [ $rc = 2 -a "$(wc -l <<<"$err")" = 1 ]
run "$BIN/ptrain" "${common[@]}" --steps 4 --publish 0.0.0.0:0 --out "$TMP/bad"
claim "an address for other machines needs keys" has "$err" "give --key-file"
run env SHARDLINE_IO_FAULT=write:3:ENOSPC "$BIN/ptrain" "${common[@]}" --steps 2 --publish 127.0.0.1:0 --out "$TMP/full"
claim "no memory for a version: one line, and training goes on to its end" [ $rc = 0 -a "$(grep -c 'publishing version 0: .*training goes on' <<<"$err")" = 1 ]
finish
