#!/usr/bin/env bash
# offload.sh - trains the preset 1b (22 GB of weights, gradients and state) in less memory, by --offload DIR:
#   memory   in a control group of 10 GB, gradients in files too
#   small    with a vocabulary of 32,000 in one of 5.6 GB, gradients and weights in files
#   overlap  without a limit, at twice the tokens of the law 4 F / BW: how much of the disk's time is hidden
# usage: tests/bench/offload.sh FOLDER [memory|small|overlap]...   FOLDER: on a disk with 36 GB free. Runs are killed
# after their last step, before they save. Prints a line a run; the log of each stays in FOLDER.
set -u
here=$(cd "$(dirname "$0")/../.." && pwd)
dir=${1:?a folder on a fast disk}
shift
bin=${BIN:-$here/build/bin} steps=${STEPS:-3} threads=${THREADS:-$(nproc)}
mkdir -p "$dir"
[ -s "$dir/text" ] || head -c 600000 /dev/urandom | base64 -w 0 >"$dir/text"
group=/sys/fs/cgroup/memory/shardline-offload-$$

# limited BYTES COMMAND...: in a control group (v1) of so much memory, else under a limit of data (ulimit -d)
limited() {
    local bytes=$1
    shift
    if [ "$bytes" != 0 ] && mkdir "$group" 2>/dev/null && echo "$bytes" >"$group/memory.limit_in_bytes"; then
        limit=cgroup
        exec bash -c 'echo $$ >"$1/cgroup.procs"; shift; exec "$@"' _ "$group" "$@"
    else
        [ "$bytes" = 0 ] || { limit=ulimit; ulimit -d $((bytes / 1024)); }
        exec "$@"
    fi
}

# one NAME BYTES ARGS...: a run until its last step
one() {
    local name=$1 bytes=$2 log=$dir/$1.jsonl pid status=/dev/null peak=0 now
    shift 2
    rm -rf "$dir/out" "$log"
    limited "$bytes" "$bin/ptrain" --data "$dir/text" --model 1b --dtype bf16 --recompute full --threads "$threads" \
        --steps 1000 --lr 1e-5 --out "$dir/out" --log "$log" --offload "$dir/disk" "$@" >/dev/null 2>"$dir/$name.err" &
    pid=$!
    while kill -0 $pid 2>/dev/null && ! grep -qs "\"step\":$steps,\"loss\"" "$log"; do
        now=$(cat /proc/$pid/statm 2>/dev/null | awk '{ printf "%.0f", $2 * 4096 }')
        [ "${now:-0}" -gt "$peak" ] && peak=$now
        sleep 0.5
    done
    kill -9 $pid 2>/dev/null
    wait $pid 2>/dev/null
    echo "$name: peak of resident memory $peak bytes"
    [ -d "$group" ] && echo "$name: peak of the control group $(cat "$group/memory.max_usage_in_bytes") bytes" && rmdir "$group"
    tail -n 3 "$dir/$name.err"
    grep '"loss":' "$log" | sed 's/.*\("step":[0-9]*\).*\("loss":[0-9.]*\).*\("tokens_per_s":[0-9.]*\).*\("rss_bytes":[0-9]*\)\(.*\),"time".*/\1 \2 \3 \4\5/'
    rm -rf "$dir/disk" "$dir/out"
}

for what in "${@:-memory small overlap}"; do
    for w in $what; do
        case $w in
        memory) one memory 10000000000 --seq-len 1024 --global-batch 1 --zero 3 --offload-grads ;;
        small) one small 5600000000 --vocab-size 32000 --seq-len 1024 --global-batch 1 --zero 3 --offload-grads --offload-params ;;
        overlap) one overlap 0 --vocab-size 32000 --seq-len 1344 --global-batch 2 --clip 0 ;;
        *) echo "$w: not known" >&2; exit 2 ;;
        esac
    done
done
