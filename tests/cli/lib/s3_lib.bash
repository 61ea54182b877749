# s3_lib.bash - for scripts that write to s3:// URLs: starts s3_server.py, makes a source, asks what a bucket holds.
#
#   . "$here/../lib/lib.bash"; . "$here/../lib/s3_lib.bash"

cd "$TMP" || exit 1
export SHARDLINE_CACHE=$TMP/cache SHARDLINE_STALL_S=1 no_proxy=127.0.0.1,localhost HOME=$TMP
unset AWS_SESSION_TOKEN AWS_PROFILE AWS_REGION AWS_ENDPOINT_URL_S3 XDG_CACHE_HOME

# make_source DIR SEED: tensors of odd sizes, so that parts and checksum blocks hold pieces of several
make_source() {
    python3 - "$1" "$2" <<'PY'
import json, os, random, struct, sys
os.makedirs(sys.argv[1])
random.seed(int(sys.argv[2]))
h, at = {}, 0
for i, n in enumerate([4500001, 1, 500000, 350000, 1600000, 6, 1500001, 500000, 3]):
    h["t%02d" % i] = {"dtype": "BF16", "shape": [n], "data_offsets": [at, at + 2 * n]}
    at += 2 * n
t = json.dumps(h).encode()
open(sys.argv[1] + "/model.safetensors", "wb").write(struct.pack("<Q", len(t)) + t + random.randbytes(at))
open(sys.argv[1] + "/config.json", "w").write('{"architectures":["OtherLM"],"model_type":"other"}')
PY
}

# s3_server: starts it, and sets the variables of the environment that name it
s3_server() {
    python3 -B "$lib_dir/s3_server.py" "$TMP/log" >"$TMP/.port" 2>"$TMP/.server.err" &
    for _ in {1..200}; do [ -s "$TMP/.port" ] && break; sleep 0.05; done
    at=http://127.0.0.1:$(cat "$TMP/.port")
    export AWS_ENDPOINT_URL=$at AWS_ACCESS_KEY_ID=id AWS_SECRET_ACCESS_KEY=key
}

# stopped_at SIGNAL N ARGUMENT...: runs reshard ARGUMENT... and sends it the signal when N more parts are there and the
# next one is on its way, or it has ended. Fills $rc, .out and .err.
stopped_at() {
    local signal=$1 n=$2 child
    shift 2
    : >"$TMP/log"
    hold "$n"
    "$BIN/reshard" "$@" >"$TMP/.out" 2>"$TMP/.err" &
    child=$!
    while kill -0 $child 2>/dev/null && ! grep -q held "$TMP/log"; do sleep 0.02; done
    kill -"$signal" $child 2>/dev/null
    { wait $child; } 2>/dev/null
    rc=$?
    hold -1
}
hold() { python3 -c 'import sys, urllib.request as u; u.urlopen(sys.argv[1]).read()' "$at/_hold/$1"; }

# state BUCKET EXPRESSION: of what the bucket holds, o (objects) and u (uploads)
state() {
    python3 -c 'import json, sys, urllib.request
s = json.load(urllib.request.urlopen(sys.argv[1]))
o, u = s["objects"], s["uploads"]
print(eval(sys.argv[2]))' "$at/_state/$1" "$2"
}
