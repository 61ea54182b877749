#!/usr/bin/env bash
# all waits
# follow_publish.sh - a server follows a trainer that publishes, on ranks divided otherwise: what it serves when
# the trainer has ended is the checkpoint of that step.
. "$(dirname "$0")/../lib/serve_lib.bash"
port=$("$python" -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
"$BIN/ptrain" --data "$TMP/text" --seq-len 64 --global-batch 4 --steps 200 --ranks 2 --zero 1 --threads 1 \
    --publish "127.0.0.1:$port" --publish-every 10 --publish-copy --save-every 10 --out "$TMP/run" \
    >"$TMP/train.out" 2>"$TMP/train.err" &
trainer=$!
until curl -sf "http://127.0.0.1:$port/version" >/dev/null || ! kill -0 $trainer 2>/dev/null; do sleep 0.05; done
"$BIN/pserve" "http://127.0.0.1:$port" --follow --port 0 --tp 2 --threads 1 >"$TMP/serve.out" 2>"$TMP/serve.err" &
server=$!
wait $trainer
claim "the trainer ends well" [ $? = 0 ]
for _ in {1..600}; do grep -q 'the URL asked again' "$TMP/serve.err" && break; sleep 0.1; done
claim "the server says that the URL is gone" grep -q 'the URL asked again' "$TMP/serve.err"
url=$(sed -n 's/.*ready on \(http:[^ ]*\).*/\1/p' "$TMP/serve.out")
read -r version weights <<<"$(curl -sf "$url/v1/models" | "$python" -c 'import json, sys
m = json.load(sys.stdin)["data"][0]
print(m["weight_version"], m["weights_digest"])')"
claim "it serves a version that was published ($version)" [ "${version:-0}" -ge 10 ]
claim "which is the checkpoint of that step" [ "$weights" = "$(digest "$TMP/run/step-$version")" ]
kill $server
wait $server
claim "it ends well" [ $? = 0 ]
finish
