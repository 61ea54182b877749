#!/usr/bin/env bash
# quick waits
# reshard_url.sh - checkpoints by URL from a server that misbehaves in every way: right bytes or a clear
# error, tokens stay at home.
here=$(cd "$(dirname "$0")" && pwd)
. "$here/../lib/lib.bash"
command -v python3 >/dev/null || { skip "no python3 here"; finish; }
cd "$TMP" || exit 1
export SHARDLINE_CACHE=$TMP/cache SHARDLINE_STALL_S=1 no_proxy=127.0.0.1,localhost
for i in $(seq 200); do echo "line $i: $((i * i)) is the square of $i"; done >text
run ptrain --data text --out run --steps 1 --seq-len 32 --global-batch 4
claim "a model is trained" [ $rc = 0 ] || finish
run reshard --dp 2 --zero 1 run/step-1 native
run reshard --format hf --shard-size 2MB native hf
mkdir served served/n served/h
cp native/* served/n; cp hf/* served/h
native=$("$BIN/reshard" digest native) hf=$("$BIN/reshard" digest hf)

file_server served "$TMP/log"
at=http://127.0.0.1:$port

for how in ok plain date busy cut stall; do
    rm -rf cache got
    run reshard digest $at/$how/h
    claim "$how: the digest of a Hugging Face folder" [ "$out" = "$hf" ]
    run reshard digest $at/$how/n
    claim "$how: the digest of a native checkpoint" [ "$out" = "$native" ]
    run reshard fetch $at/$how/n got
    claim "$how: fetch" [ $rc = 0 ]
    claim "$how: the same files" diff -r native got
done
run reshard --tp 2 $at/plain/h two
claim "without ranges a line says so" has "$err" "one stream"
rm -rf cache two two-local
: >log
run reshard --tp 2 --weights-only $at/ok/n two
claim "a URL is a source like any other" [ $rc = 0 ]
run reshard --tp 2 --weights-only native two-local
claim "with the same bytes" diff -r two two-local
run reshard digest $at/ok/h/model-00001-of-00003.safetensors
claim "one file by URL" [ $rc = 0 ]

# what is no checkpoint: data, a config, a tokenizer
mkdir served/d
cp text "served/d/a text"
cp hf/config.json served/d
cp hf/tokenizer*.json served/d
few=(--steps 1 --seq-len 32 --global-batch 4)
run ptrain --data text --model hf/config.json --out near "${few[@]}"
state=$(sed -n 's/.*"state_digest":"\([0-9a-f]*\)".*/\1/p' <<<"$out")
for how in ok plain cut; do
    rm -rf cache far
    : >log
    run ptrain --data "$at/$how/d/a%20text" --model $at/$how/d/config.json --ranks 2 --out far "${few[@]}"
    claim "$how: data and config by URL give the run of those at hand" has "$out" "${state:-none}"
done
sent=$(sed -n 's/^cut d\/a.*text.* sent=\([0-9]*\).*/\1/p' log | awk '{ s += $1 } END { print s + 0 }')
claim "two ranks fetch the data once ($sent of $(wc -c <text), cut connections too)" [ "$sent" -le \
    $((2 * $(wc -c <text))) ]
run ptok prepare --tokenizer $at/ok/d "$at/ok/d/a%20text" --out far.bin
far=$out
run ptok prepare --tokenizer served/d text --out near.bin
claim "a tokenizer and text by URL" [ $rc = 0 -a "$far" = "$out" ] &&
    claim "give the same tokens" cmp near.bin far.bin
chat='{"messages":[{"role":"user","content":"hi"}]}'
echo '{{ messages[0].content }}!' >served/d/chat_template.jinja
claim "a chat template beside it" has "$("$BIN/ptok" render --tokenizer $at/ok/d <<<"$chat")" '"hi!"'
rm served/d/chat_template.jinja
claim "is not there any more when the server has it no more" has \
    "$("$BIN/ptok" render --tokenizer $at/ok/d <<<"$chat" 2>&1)" "chat"
claim "nor here" [ -z "$(find cache -name chat_template.jinja)" ]
run reshard --config $at/ok/d/config.json hf far-config
claim "reshard --config by URL" [ $rc = 0 ]
run memplan --model $at/ok/d/config.json --gpus 2 --tp 2
claim "memplan --model by URL" [ $rc = 0 ]
run ptrain --data $at/ok/d/none --out far-none
claim "data that are not there are named" [ "$rc $err" = \
    "1 ptrain: $at/ok/d/none: there is no such file: check the URL" ]
run ptrain --data text --tokenizer $at/ok/n/none --out far-none
claim "a folder without a tokenizer is named" has "$err" "/ok/n/none: has no tokenizer.json"
run ptrain --data ftp://host/text --out far-none
claim "a kind of URL that is not known is refused" [ $rc = 2 ]

while read -r how says; do
    rm -rf cache got
    run reshard fetch $at/$how/n got
    claim "$how: an error" [ $rc = 1 ]
    claim "$how: one line" [ "$(wc -l <.err)" = 1 ]
    claim "$how: says \"$says\"" has "$err" "$says"
    claim "$how: nothing appears" [ ! -e got ]
done <<'END'
wrong restore
first the server sent
gone forbidden
gzip compressed
loop redirects
file rotocol
ok/none no manifest.json
END

export HF_ENDPOINT=$at/hub
rm -rf cache got
HF_TOKEN=secret run reshard fetch hf://owner/name got
claim "the hub wants its token" [ $rc = 1 ]
rm -rf served/root; cp hf/* served/
: >log
export HF_TOKEN=secret
run reshard fetch hf://owner/name@v1 got
claim "hf: fetch by revision, with sha256" [ $rc = 0 ]
claim "hf: the same files" diff -r hf got
run pserve hf://owner/name --once x --max-tokens 3
claim "hf: pserve" [ $rc = 0 -a "$out" = "$("$BIN/pserve" hf --once x --max-tokens 3)" ]
claim "hf: the hub got the token" grep -q "^hub .*auth=yes" log
claim "hf: the other host did not" bash -c '! grep -q "^ok .*auth=yes" log'
rm -rf cache got got.tmp-fetch
HF_ENDPOINT=$at/hubbad run reshard fetch hf://owner/name got
claim "hf: wrong sha256 is found" has "$err" sha256
claim "hf: and nothing appears" [ ! -e got ]
unset HF_TOKEN HF_ENDPOINT

# killed in the middle, again and again: what is there is not fetched again
big=served/big; mkdir $big; cp hf/config.json $big
python3 - <<'PY'
import json, os, struct
n = 24 << 20
h = json.dumps({"w": {"dtype": "U8", "shape": [n], "data_offsets": [0, n]}}).encode()
open("served/big/model.safetensors", "wb").write(struct.pack("<Q", len(h)) + h + os.urandom(n))
PY
: >log
for i in 1 2 3 4 5; do
    timeout -s KILL 0.5 "$BIN/reshard" fetch --threads 2 $at/slow/big got >/dev/null 2>&1
    claim "kill $i: nothing half appears" [ ! -e got ] || break
done
run flock got.tmp-fetch/.shardline-tmp "$BIN/reshard" fetch $at/slow/big got
claim "while another process has its folder it is refused" [ $rc = 1 ] &&
    claim "which is said" has "$err" "another process has got.tmp-fetch: wait"
mkdir notes.tmp-fetch; echo notes >notes.tmp-fetch/.notes
run reshard fetch $at/slow/big notes
claim "a folder of that name which no fetch made is refused" [ $rc = 1 ] &&
    claim "which is said" has "$err" "notes.tmp-fetch has no .shardline-tmp"
claim "and not touched" [ "$(ls -A notes.tmp-fetch)/$(cat notes.tmp-fetch/.notes)" = .notes/notes ]
run reshard fetch $at/slow/big got
claim "after five kills it ends" [ $rc = 0 ]
claim "with the right bytes" cmp got/model.safetensors served/big/model.safetensors
claim "only the files are left" [ "$(ls -A got | wc -l)" = 2 ]
sent=$(sed -n 's/^slow big\/model.*sent=\([0-9]*\)$/\1/p' log |
    awk '{ s += $1 } END { print int(s / 1048576) }')
claim "at most 16 MiB were fetched twice ($sent of 24)" [ "$sent" -le 40 ]

# ranks that share the cache: every byte once
rm -rf cache
: >log
run pserve $at/ok/h --tp 4 --once x --max-tokens 1
claim "pserve at tp 4 from a URL" [ $rc = 0 ]
sent=$(sed -n 's/^ok h\/model.*sent=\([0-9]*\)$/\1/p' log | awk '{ s += $1 } END { print s }')
total=$(cat hf/*.safetensors | wc -c)
claim "transfers the weights once: $sent of $total" [ "$((sent * 100))" -le "$((total * 105))" ]

if ${PYTHON:-python3} -c 'import moto.server, boto3' 2>/dev/null; then
    ${PYTHON:-python3} - >/dev/null 2>&1 <<'PY' &
from moto.server import ThreadedMotoServer
import boto3, glob, os, time
s = ThreadedMotoServer(ip_address="127.0.0.1", port=0); s.start()
host, port = s.get_host_and_port()
c = boto3.client("s3", endpoint_url="http://127.0.0.1:%d" % port, aws_access_key_id="a", aws_secret_access_key="b", region_name="us-east-1")
c.create_bucket(Bucket="models")
for f in glob.glob("native/*"):
    c.upload_file(f, "models", "some/prefix/" + os.path.basename(f))
open("s3.tmp", "w").write(str(port))
os.rename("s3.tmp", "s3.port")
time.sleep(120)
PY
    moto=$!
    for i in $(seq 100); do [ -s s3.port ] && break; sleep 0.2; done
    export AWS_ENDPOINT_URL=http://127.0.0.1:$(cat s3.port) AWS_ACCESS_KEY_ID=a AWS_SECRET_ACCESS_KEY=b
    rm -rf got
    run reshard fetch s3://models/some/prefix got
    claim "s3: fetch" [ $rc = 0 ]
    claim "s3: the same files" diff -r native got
    run pserve s3://models/some/prefix --once x --max-tokens 3
    claim "s3: pserve" [ $rc = 0 -a "$out" = "$("$BIN/pserve" native --once x --max-tokens 3)" ]
    kill $moto
else
    skip "no moto here"
fi
kill $server
finish
