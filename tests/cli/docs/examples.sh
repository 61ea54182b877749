#!/usr/bin/env bash
# all
# examples.sh - the commands of examples/ and of the images, which launch/slurm.sh and launch/two_hosts.sh do
# not run: mpirun of the MPIJob (twice: the second start goes on from the first one's checkpoint), the server
# of systemd and of serve/pserve.Dockerfile with its health check. Sizes, names and ports are made those of a
# small model; every other word stays. The MPIJob is also held against the schema of v2beta1, as far as it
# uses it.
. "$(dirname "$0")/../lib/train_lib.bash"
top=$(cd "$(dirname "$0")/../../.." && pwd)
here=$(cd "$(dirname "$0")" && pwd)
python=${PYTHON:-python3}
command -v "$python" >/dev/null || { skip "no python3"; finish; }
export PATH=$BIN:$PATH
cd "$TMP" || exit 1
mkdir data ckpt
text 1 20000 >text
run ptok prepare --tokenizer bytes text --out data/tokens.bin
claim "tokens" [ $rc = 0 ] || finish

# ---- the MPIJob
job=$("$python" -B "$here/mpijob.py" "$top/examples/mpijob.yaml" 2>"$TMP/.err")
rc=$?
claim "the MPIJob fits its schema" [ $rc = 0 -a -n "$job" ] || finish
plan=${job#*ptrain }
plan=${plan%% --resume*}
run bash -c "ptrain --ranks 16 ${plan//\/data\//data/} --dry-run"
claim "its layout is one that ptrain plans" [ $rc = 0 ]
small=$(sed 's|-n 16|-n 2 --oversubscribe|; s|--tp 8|--tp 2|; s|/data/|data/|; s|/ckpt/|ckpt/|g; s|--model 1b|--model tiny|; s|--global-batch 256|--global-batch 8|; s|--seq-len 2048|--seq-len 32|; s|--threads 4|--threads 1|' <<<"$job")
for stop in 2 4; do
    run timeout 200 bash -c "$small --stop-after $stop"
    claim "mpirun of the MPIJob, to step $stop" [ $rc = 0 -a -e "ckpt/run/step-$stop/manifest.json" ]
done
claim "the second one resumed" has "$err" "resumed ckpt/run/step-2"

# ---- servers
free_port() {
    "$python" -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'
}
echo key-one >keys
serves() {                  # NAME HEALTH KEY COMMAND...: it becomes ready, is healthy, answers, and ends well
    local what=$1 health=$2 key=$3 pid
    shift 3
    "$@" >server.out 2>.err &
    pid=$!
    for _ in {1..600}; do
        grep -q 'ready on' server.out && break; kill -0 $pid 2>/dev/null || break; sleep 0.1
    done
    claim "$what is ready" grep -q 'ready on' server.out
    claim "$what is healthy" bash -c "${health//:8000/:$port}" >/dev/null
    claim "$what answers" has \
        "$(curl -s "http://127.0.0.1:$port/v1/completions" ${key:+-H "Authorization: Bearer $key"} -H \
            'Content-Type: application/json' -d '{"prompt":"line","max_tokens":2}')" text_completion
    [ -z "$key" ] ||
        claim "$what asks for a key" [ \
            "$(curl -s -o /dev/null -w '%{http_code}' "http://127.0.0.1:$port/v1/models")" = 401 ]
    kill -TERM $pid
    wait $pid
    rc=$?
    claim "$what ends well" [ $rc = 0 ]
}
port=$(free_port)
command=$(sed -n 's|^ExecStart=/usr/bin/||p' "$top/examples/pserve.service" |
    sed "s|/srv/model|ckpt/run/step-4|; s|0\.0\.0\.0|127.0.0.1|; s|8000|$port|")
CREDENTIALS_DIRECTORY=$TMP serves "the unit's server" "curl -sSf http://127.0.0.1:8000/health" key-one bash \
    -c "exec $command"

file=$top/serve/pserve.Dockerfile
words() { sed -n "s/^$1 \[\(.*\)\]\$/\1/p" "$file" | tr -d '",'; }
health=$(sed -n 's/^HEALTHCHECK .*CMD \[\(.*\)\]$/\1/p' "$file" | tr -d '",')
port=$(free_port)
command=$(words ENTRYPOINT | sed "s|/model|ckpt/run/step-4|; s|0\.0\.0\.0|127.0.0.1|; s|8000|$port|")
claim "the image has a command and a health check" [ -n "$command" -a -n "$health" ]
serves "the image's server" "$health" "" bash -fc "exec $command $(words CMD)"
run sysctl -n net.ipv4.tcp_retries2
[ $rc = 127 ] || claim "the setting that examples/README.md names exists" [ $rc = 0 ]
finish
