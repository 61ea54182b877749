#!/usr/bin/env bash
# all long
# docs.sh - every command of README.md, docs/ and the examples in --help is run: the blocks that begin with
# ```sh, in order, in one folder for a page. What stands behind ```sh is what the block needs: a module of
# Python ("```sh openai"), or "not run: WHY" for what a test cannot do. A page's port 8000 becomes a free one,
# hf:// and https:// sources a server of a folder here.
. "$(dirname "$0")/../lib/train_lib.bash"
top=$(cd "$(dirname "$0")/../../.." && pwd)
here=$(cd "$(dirname "$0")" && pwd)
python=${PYTHON:-python3}
export PATH=$BIN:$top/tools:$PATH XDG_CACHE_HOME=$TMP/cache HF_HUB_OFFLINE=1
free_port() {
    "$python" -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'
}

# sandbox DIR: the files that the pages begin with
sandbox() {
    mkdir -p "$1" && cd "$1" || exit 1
    text 1 60000 >corpus.txt
    text 2 4000 >valid.txt
    mkdir build && ln -s "$BIN" build/bin
    echo key-one >keys.txt
}

# run_page NAME FILE: the file is what extract printed
run_page() {
    local name=$1 script=$2 blocks last
    blocks=$(grep -c '^echo @@' "$script")
    (cd "$TMP/$name" && timeout 900 bash -eu "$script") >"$TMP/$name.out" 2>"$TMP/$name.err" </dev/null
    rc=$?
    last=$(grep -c '^@@' "$TMP/$name.out")
    cp "$TMP/$name.err" "$TMP/.err"
    tail -n 5 "$TMP/$name.out" >"$TMP/.out"
    claim "$name: $blocks blocks run (at block $last: $(grep '^@@' "$TMP/$name.out" | tail -n 1))" [ $rc = 0 \
        -a "$last" = "$blocks" ]
    n_passed=$((n_passed + (last > 1 ? last - 1 : 0)))
}

for page in README.md docs/guide.md docs/rl.md docs/tested.md docs/simulator.md; do
    name=$(basename "$page" .md)
    (sandbox "$TMP/$name")
    file_server "$TMP/$name" "$TMP/$name.requests"
    "$python" -B "$here/extract.py" "$top/$page" "$python" "$(free_port)" "http://127.0.0.1:$port/ok" \
        >"$TMP/$name.sh" 2>"$TMP/$name.skips"
    while read -r line; do skip "$name: $line"; done <"$TMP/$name.skips"
    run_page "$name" "$TMP/$name.sh"
done

# the examples of --help, one after the other
(sandbox "$TMP/help")
cd "$TMP/help" || exit 1
file_server "$TMP/help" "$TMP/help.requests"
url=http://127.0.0.1:$port/ok/hf-model
run_example() {             # COMMAND: a server must become ready, everything else must end with 0
    local port
    if [[ $1 == pserve* && $1 != *--once* ]]; then
        port=$(free_port)
        local command="$1 --port $port"
        eval "exec ${command/--port [0-9]* --port/--port}" >"$TMP/serve.out" 2>"$TMP/.err" &
        local server=$!
        for _ in {1..600}; do
            grep -q 'ready on' "$TMP/serve.out" && break; kill -0 $server 2>/dev/null || break; sleep 0.1
        done
        cp "$TMP/serve.out" "$TMP/.out"
        claim "example: $1" grep -q 'ready on' "$TMP/serve.out"
        kill $server 2>/dev/null
        wait $server
        return 0
    fi
    run bash -c "$1"
    claim "example: $1" [ $rc = 0 -o "${1#reshard diff}" != "$1" -a $rc = 1 ]
}
run bash -c "ptrain --data corpus.txt --model tiny --steps 2 --seq-len 32 --out first && reshard --format hf first/step-2 hf-model >/dev/null &&
    reshard --format deepspeed-universal first/step-2 zero-ckpt && ptrain --data corpus.txt --model tiny --steps 4 --seq-len 32 --out second --log other.jsonl &&
    echo '{\"n\":0,\"text_b64\":\"aGk=\"}' >texts.jsonl && echo '{% for m in messages %}{{ m.content }}{% endfor %}' >template.jinja &&
    echo '{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]}' >chats.jsonl && echo '{\"type\":\"object\"}' >schema.json"
claim "what the examples begin with" [ $rc = 0 ]
"$python" -B "$here/../lib/s3_server.py" "$TMP/s3.log" >"$TMP/s3.port" 2>"$TMP/s3.err" &
for _ in {1..200}; do [ -s "$TMP/s3.port" ] && break; sleep 0.05; done
export AWS_ENDPOINT_URL=http://127.0.0.1:$(cat "$TMP/s3.port") AWS_ACCESS_KEY_ID=id AWS_SECRET_ACCESS_KEY=key
for p in ptrain "reshard" "reshard inspect" "reshard verify" "reshard digest" "reshard diff" "reshard plan" \
    "reshard fetch" pserve ptok memplan plot; do
    while IFS= read -r line; do
        line=${line#  }
        [[ $line != \#* && -n $line ]] || continue
        line=${line//hf:\/\/owner\/name/$url}
        line=${line//https:\/\/host\/models\/name/$url}
        rm -rf name run-tp8-old
        run_example "$line"
    done < <($p --help | sed -n '/^examples:/,/^$/p' | tail -n +2)
done
port=$(free_port)
pserve run/step-60 --port "$port" >"$TMP/serve.out" 2>"$TMP/.err" &
server=$!
for _ in {1..300}; do grep -q 'ready on' "$TMP/serve.out" && break; sleep 0.1; done
while IFS= read -r line; do
    [[ $line == *pbench* ]] || continue
    line=${line//http:\/\/127.0.0.1:8000/http:\/\/127.0.0.1:$port}
    [[ $line == *--url* ]] || line="$line --url http://127.0.0.1:$port"
    run_example "${line#  }"
done < <(pbench --help | sed -n '/^examples:/,/^$/p' | tail -n +2)
kill $server
cd "$TMP" || exit 1
find "$TMP" -maxdepth 2 -name 'manifest.json' -delete 2>/dev/null
finish
