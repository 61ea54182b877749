#!/usr/bin/env bash
# quick waits
# url_faults.sh - what can go wrong between a server and us in the middle: files that change, servers that
# want to be left alone, branches that move, redirects of signed requests, signals; and ranks that start from
# a URL.
here=$(cd "$(dirname "$0")" && pwd)
. "$here/../lib/lib.bash"
python=${PYTHON:-python3}
command -v "$python" >/dev/null || { skip "no python3 here"; finish; }
cd "$TMP" || exit 1
export SHARDLINE_CACHE=$TMP/cache SHARDLINE_STALL_S=1 no_proxy=127.0.0.1,localhost HOME=$TMP
unset HF_TOKEN HF_HOME HF_TOKEN_PATH XDG_CACHE_HOME AWS_ACCESS_KEY_ID AWS_SESSION_TOKEN AWS_PROFILE
for i in $(seq 200); do echo "line $i: $((i * i)) is the square of $i"; done >text
train="--data text --seq-len 32 --global-batch 4"
run ptrain $train --out run --steps 2 --stop-after 1
claim "a model is trained" [ $rc = 0 ] || finish
mkdir served served/n served/h served/big
cp run/step-1/* served/n
run reshard --format hf run/step-1 hf
cp hf/* served/h
cp hf/config.json served/big
native=$("$BIN/reshard" digest run/step-1)
"$python" - <<'PY'
import json, os, struct
n = 24 << 20
h = json.dumps({"w": {"dtype": "U8", "shape": [n], "data_offsets": [0, n]}}).encode()
data = struct.pack("<Q", len(h)) + h + os.urandom(n)
open("served/big/model.safetensors", "wb").write(data)
open("new", "wb").write(data[:1 << 20] + data[1 << 20:].translate(bytes(b ^ 1 for b in range(256))))
PY
file_server served "$TMP/log"
at=http://127.0.0.1:$port

# another version in the middle: never a mixture
run reshard fetch --threads 1 $at/swap/big got
claim "a file that changes meanwhile is an error" [ $rc = 1 ]
claim "that says so" has "$err" "changed while it was read"
claim "and nothing appears" [ ! -e got ]
run reshard fetch --threads 1 $at/swap/big got
claim "the next try succeeds" [ $rc = 0 ]
claim "and has the new version only" cmp -s got/model.safetensors new

# all files of a folder renewed between the index and the weights
mkdir served/i
cp hf/config.json served/i
"$python" - <<'PY'
import json, struct
data = open("hf/model.safetensors", "rb").read()
names = [n for n in json.loads(data[8:8 + struct.unpack("<Q", data[:8])[0]]) if n != "__metadata__"]
open("served/i/model-00001-of-00001.safetensors", "wb").write(data)
json.dump({"weight_map": {n: "model-00001-of-00001.safetensors" for n in names}}, open("served/i/model.safetensors.index.json", "w"))
PY
run reshard digest $at/republish/i
claim "a folder that is renewed while it is read is an error" [ $rc = 1 ]
claim "that names the file of the old version" has "$err" "index.json: changed while the folder was read"
run reshard digest $at/republish/i
claim "and is read when started again" [ "$out" = "$("$BIN/reshard" digest hf)" ]

# servers that want to be left alone
for how in later laterdate; do
    rm -rf got
    run reshard fetch $at/$how/h/model.safetensors got
    claim "$how: fetch" [ $rc = 0 ]
    claim "$how: the right bytes" cmp -s got/model.safetensors hf/model.safetensors
    claim "$how: it was waited for" bash -c "! grep -q '^$how .* early' log"
done
run reshard fetch $at/closed/h late
claim "an hour is not waited for" [ $rc = 1 ]
claim "but said" has "$err" "come back in 4000 s"
rm -rf got cache
run reshard digest $at/plaincut/h
claim "without ranges a cut download begins again" [ "$out" = "$("$BIN/reshard" digest hf)" ]

# answers without an end: a limit of bytes and of time, and a line that says it
while IFS='|' read -r what says; do
    SHARDLINE_STALL_S=2 run timeout -k 5 60 "$BIN/reshard" inspect "$at/endless-$what/h/model.safetensors"
    claim "endless $what: status 1" [ $rc = 1 ]
    claim "endless $what: $says" has "$err" "$says"
done <<'TABLE'
probe|the server sent more than was asked for
redirect|the server sent 256 KiB that are not the file
slow|the server sends and sends, but not the file
error|status 403
hints|the server sent 256 KiB that are not the file
header|the server sent 256 KiB that are not the file
line|a header line is too long
trailer|the server sent 256 KiB that are not the file
TABLE

# what is secret in a URL is not printed
run reshard digest "$at/gone/h?X-Amz-Signature=hidden"
claim "a signed URL is refused" has "$err" forbidden
claim "without its signature" bash -c '! grep -q hidden .err'

# a branch that moves while it is read
a=$(printf 'a%.0s' $(seq 40)) b=$(printf 'b%.0s' $(seq 40))
mkdir served/$a served/$b
cp hf/* served/$a
cp hf/* served/$b
sed -i 's/"vocab_size": 256/"vocab_size": 257/' served/$b/config.json
: >log
HF_ENDPOINT=$at/move run reshard fetch hf://owner/name moved
claim "hf: a branch is fetched" [ $rc = 0 ]
claim "all of one commit" diff -r hf moved
claim "which is said" has "$err" "main is commit $a"
claim "after that nobody asks for the branch" [ "$(sed -n '2,$p' log | grep -c resolve/main)" = 0 ]
HF_ENDPOINT=$at/move run reshard fetch hf://owner/name@$a pinned
claim "hf: a commit stays what it is" diff -r hf pinned
claim "and needs no line" bash -c '! grep -q "is commit" .err'

# the token that the hub's own client keeps
cp hf/* served/
mkdir -p .cache/huggingface; echo secret >.cache/huggingface/token
export HF_ENDPOINT=$at/hub
run reshard fetch hf://owner/name@v1 by-token
claim "hf: the token file is used" [ $rc = 0 ]
rm -rf .cache; mkdir home; echo secret >home/token
rm -rf by-token
HF_HOME=$TMP/home run reshard fetch hf://owner/name@v1 by-token
claim "hf: in HF_HOME too" [ $rc = 0 ]
HF_ENDPOINT=$at/hubbad HF_TOKEN=secret run reshard digest hf://owner/name
claim "hf: a wrong sha256 is found by who reads all of the file" has "$err" "sha256"
unset HF_ENDPOINT

# keys are for one host
export AWS_ACCESS_KEY_ID=id AWS_SECRET_ACCESS_KEY=key AWS_SESSION_TOKEN=session
: >log
AWS_ENDPOINT_URL=$at/ok run reshard digest s3://n
claim "s3: read" [ "$out" = "$native" ]
claim "s3: requests are signed, with the session" grep -q "auth=yes.*session=yes" log
: >log
AWS_ENDPOINT_URL=$at/to/localhost:$port/ok run reshard digest s3://n
claim "s3: a redirect is refused" has "$err" "keys go to no other host"
claim "s3: the other host got nothing" bash -c '! grep -q "^ok" log'
unset AWS_ACCESS_KEY_ID AWS_SECRET_ACCESS_KEY AWS_SESSION_TOKEN
mkdir .aws
printf '[other]\naws_access_key_id = no\n[default]\naws_access_key_id = id\naws_secret_access_key=key\n' \
    >.aws/credentials
: >log
rm -rf cache
AWS_ENDPOINT_URL=$at/ok run reshard digest s3://n
claim "s3: keys of the file" grep -q "auth=yes" log

# a signal ends a download, and the next one goes on from there
: >log
timeout -s TERM 0.7 "$BIN/reshard" fetch --threads 2 $at/slow/big stopped >.out 2>.err
claim "SIGTERM: one line" [ "$(wc -l <.err)" = 1 ]
claim "SIGTERM: that says how it goes on" grep -q "goes on from there" .err
run reshard fetch $at/slow/big stopped
claim "and it does" cmp -s stopped/model.safetensors served/big/model.safetensors

# ranks that start from a URL: every byte once, the same bits
sent() { sed -n "s|^$1.*sent=\([0-9]*\).*\$|\1|p" log | awk '{ s += $1 } END { print s + 0 }'; }
bits() { sed 's/.*"loss_bits":"\([^"]*\)".*"weights_digest":"\([^"]*\)".*/\1 \2/' <<<"$out"; }
weights=$(cat hf/*.safetensors | wc -c) state=$(cat run/step-1/*.safetensors | wc -c)
rm -rf cache
: >log
run ptrain $train --ranks 4 --tp 2 --zero 3 --init $at/ok/h --steps 1 --out by-url
claim "ptrain --init URL" [ $rc = 0 ] && ours=$(bits)
n=$(sent "ok h/")
claim "transfers the weights once: $n of $weights" [ $((n * 100)) -le $((weights * 105)) ]
run ptrain $train --ranks 4 --tp 2 --zero 3 --init hf --steps 1 --out by-folder
claim "to the bits of a folder" [ "$ours" = "$(bits)" ]
rm -rf cache
: >log
run ptrain $train --ranks 4 --tp 4 --resume $at/ok/n --steps 2 --out again
claim "ptrain --resume URL" [ $rc = 0 ] && ours=$(bits)
n=$(sent "ok n/")
claim "transfers the state once: $n of $state" [ $((n * 100)) -le $((state * 105)) ]
run ptrain $train --resume run/step-1 --steps 2 --out there
claim "to the bits of the run it continues" [ "$ours" = "$(bits)" ]
rm -rf cache
: >log
run pserve $at/ok/n --tp 4 --once x --max-tokens 1
claim "pserve at tp 4" [ $rc = 0 ]
n=$(sent "ok n/")
claim "reads no optimizer state: $n of $weights" [ $((n * 100)) -le $((weights * 105)) ]
finish
