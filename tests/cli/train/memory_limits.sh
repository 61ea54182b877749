#!/usr/bin/env bash
# quick
# memory_limits.sh - a run whose plan needs more memory than is free is refused before it allocates, with both
# numbers and a layout that fits: by the machine's memory, by control groups of both versions (files that
# stand for them; real ones where they can be made), for the ranks of a machine together. And a signal ends a
# run that is still starting.
. "$(dirname "$0")/../lib/train_lib.bash"
text 1 20000 >"$TMP/text"
common=(--data "$TMP/text" --model tiny --steps 1 --seq-len 32 --threads 1)
export SHARDLINE_MACHINE_ROOT=                   # empty: unset

# machine FREE [LIMIT USED [CACHE]]: a tree of files for a machine with FREE bytes and, with LIMIT, a control
# group (version 2)
machine() {
    local root=$TMP/machine group=$TMP/machine/sys/fs/cgroup/job.slice
    rm -rf "$root"
    mkdir -p "$root/proc/self" "$group"
    printf 'MemTotal: %d kB\nMemAvailable: %d kB\n' $(($1 / 1024)) $(($1 / 1024)) >"$root/proc/meminfo"
    echo 0::/job.slice >"$root/proc/self/cgroup"
    echo '31 23 0:28 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw' >"$root/proc/self/mountinfo"
    [ $# -gt 1 ] || return 0
    echo "$2" >"$group/memory.max"
    echo "$3" >"$group/memory.current"
    printf 'shmem 1\ninactive_file %d\nactive_file 0\n' "${4:-0}" >"$group/memory.stat"
}
# planned ARGS...: bytes of the plan, the ranks of this machine together, and what each takes besides
planned() {
    local n=1 a
    for a in "$@"; do [[ $a =~ ^[248]$ ]] && n=$a && break; done
    "$BIN/ptrain" "${common[@]}" "$@" --dry-run |
        sed -n 's/^memory *\([0-9.]*\) \([kMG]*B\) a rank$/\1 \2/p' |
        awk -v n="$n" '{ printf "%.0f\n", n * ($1 * ($2 ~ /G/ ? 1e9 : $2 ~ /M/ ? 1e6 : 1e3) + 41943040) }'
}
one_line() { [ "$(wc -l <<<"$err")" = 1 ]; }
refused() {
    claim "$1: refused" [ $rc = 2 ] && claim "$1: in one line" one_line &&
        claim "$1: both numbers" has "$err" " are needed and "
}

# ---- the issue's own case, on any machine with less than 140 GB ----
machine 24000000000
export SHARDLINE_MACHINE_ROOT=$TMP/machine
begin=$(date +%s%N)
run timeout -k 10 60 "$BIN/ptrain" --data "$TMP/text" --model 7b --out "$TMP/large"
refused "7b"
claim "7b: at once" [ $(($(date +%s%N) - begin)) -lt 10000000000 ]
claim "7b: the largest parts" eval \
    '[[ $err == *"143.18 GB are needed and 24.00 GB are free on this machine (1 rank; optim 53.91 GB, params 53.38 GB, grads 26.95 GB)"* ]]'
claim "7b: a layout that fits" has "$err" "8 machines like this one hold it, 8 ranks in all with --zero 3"
claim "7b: and the way on" has "$err" "--force"
run timeout -k 10 60 "$BIN/ptrain" --data "$TMP/text" --model 70b --ranks 2 --out "$TMP/large"
refused "70b on two ranks"
claim "70b on two ranks: their sum" has "$err" "2.53 TB are needed"
claim "70b on two ranks: a layout that fits" has "$err" "machines like this one hold it"

# ---- a control group decides where it leaves less than the machine has; pages of files are no use ----
need=$(planned)
machine 24000000000 $((need + 3000000)) 1000000
train fits
claim "a run that the group has space for starts" [ $rc = 0 ]
machine 24000000000 $((need + 3000000)) 6000000
train fits
refused "a group that others use"
claim "a group that others use: which is said" has "$err" "are left of the control group's"
machine 24000000000 $((need + 3000000)) 500000000 499000000
train fits
claim "page cache is no use" [ $rc = 0 ]

# ---- ranks of one machine together; the advice is true ----
need=$(planned --ranks 2)
machine $((need - 8000000))
train fits
claim "one rank fits" [ $rc = 0 ]
train both --ranks 2
refused "two ranks are summed"
claim "two ranks are summed: and said" has "$err" "(2 ranks;"
advice=$(sed -n 's/.*): use \(.*\) (.*/\1/p' <<<"$err")
claim "two ranks: options that help" [ -n "$advice" ]
read -r -a words <<<"$advice"
train both --ranks 2 "${words[@]}"
claim "with them it starts: $advice" [ $rc = 0 ]
train both --ranks 2 --force
claim "--force starts it" [ $rc = 0 ]
claim "--force says so" has "$err" "started because of --force"
train both --ranks 2 --ranks-per-node 1 --transport mpi
claim "--ranks-per-node divides no memory" [ $rc = 2 ]
claim "--ranks-per-node: both ranks are summed" has "$err" "(2 ranks;"

# ---- experts on two ranks: their rows are dealt as in ZeRO-2, and the partial sums take memory ----
experts=(--model tiny-moe --ranks 2 --ep 2 --global-batch 8 --micro-batch 1)
of_experts=$(planned "${experts[@]}")
machine $((of_experts + 1000000))
train experts "${experts[@]}"
claim "the plan of --dry-run fits" [ $rc = 0 ]
machine $((of_experts - 1000000))
train experts "${experts[@]}"
refused "a machine that is smaller than it"

# ---- evaluation holds weights and activations ----
run timeout -k 10 100 "$BIN/ptrain" --eval-only --init "$TMP/fits/step-1" --eval-data "$TMP/text" --seq-len \
    32 --threads 1
claim "an evaluation starts" [ $rc = 0 ]
machine 42000000
run timeout -k 10 100 "$BIN/ptrain" --eval-only --init "$TMP/fits/step-1" --eval-data "$TMP/text" --seq-len \
    32 --threads 1
refused "an evaluation"
export SHARDLINE_MACHINE_ROOT=

# ---- pserve: weights, and keys and values, of all ranks of the machine; reshard: buffers of its threads ----
serve() {
    run timeout -k 10 100 "$BIN/pserve" "$TMP/fits/step-1" --ctx 128 --max-batch 64 --once a --max-tokens 1 \
        "$@"
}
machine 75000000
export SHARDLINE_MACHINE_ROOT=$TMP/machine
serve --kv-memory 20MB
claim "pserve: what fits serves" [ $rc = 0 ]
machine 60000000
serve --kv-memory 20MB
refused "pserve --kv-memory"
less=$(sed -n 's/.*use --kv-memory \([0-9.]*\) MB or less.*/\1/p' <<<"$err")
claim "pserve --kv-memory: a smaller one is named" [ -n "$less" ]
serve --kv-memory "${less%.*}MB"
claim "pserve --kv-memory: with which it serves" [ $rc = 0 ]
serve --kv-memory 8MB --tp 2
refused "pserve: two ranks are summed"
machine 43000000
serve --kv-memory 1MB
refused "pserve: weights"
claim "pserve: weights: what to do" has "$err" "use --dtype bf16, or more ranks on more machines"
machine 100000000
run reshard --threads 1 --tp 2 "$TMP/fits/step-1" "$TMP/cut"
claim "reshard: what fits runs" [ $rc = 0 ]
run reshard --threads 64 --tp 2 "$TMP/fits/step-1" "$TMP/cut64"
refused "reshard --threads 64"
claim "reshard --threads 64: what to do" has "$err" "use a smaller --threads"
claim "reshard --threads 64: nothing is written" [ ! -e "$TMP/cut64" ]
export SHARDLINE_MACHINE_ROOT=

# ---- a real control group, of version 1 or 2 ----
own=$(sed -n 's/^[0-9]*:memory:/\/sys\/fs\/cgroup\/memory/p; s/^0::/\/sys\/fs\/cgroup/p' /proc/self/cgroup |
    head -n 1)/shardline-test-$$
limit=$((need - 8000000))
if mkdir "$own" 2>/dev/null && { echo $limit >"$own/memory.limit_in_bytes" ||
    echo $limit >"$own/memory.max"; } 2>/dev/null &&
    (echo $BASHPID >"$own/cgroup.procs") 2>/dev/null; then
    confined() {
        (echo $BASHPID >"$own/cgroup.procs" &&
            exec timeout -k 10 100 "$BIN/ptrain" "${common[@]}" --out "$TMP/confined$#" "$@")
    }
    run confined
    claim "a real group: what fits runs" [ $rc = 0 ]
    run confined --ranks 2
    refused "a real group: what does not fit"
    claim "a real group: its limit" has "$err" "of the control group's"
else
    skip "no control group with a memory limit can be made here"
fi
for _ in {1..100}; do rmdir "$own" 2>/dev/null; [ -d "$own" ] && sleep 0.05 || break; done

# ---- a signal while the run still starts: a server that never answers keeps it there ----
cat >"$TMP/silent.py" <<'PYTHON'
import socket, sys
s = socket.socket()
s.bind(("127.0.0.1", 0))
s.listen(8)
print(s.getsockname()[1], flush=True)
kept = []
while True:
    kept.append(s.accept())
    print("asked", flush=True)
PYTHON
for ranks in 1 2; do
    rm -f "$TMP/silent"
    python3 -B "$TMP/silent.py" >"$TMP/silent" &
    silent=$!
    for _ in {1..400}; do [ -s "$TMP/silent" ] && break; sleep 0.05; done
    SHARDLINE_CACHE=$TMP/cache "$BIN/ptrain" --ranks $ranks --model tiny --data \
        "http://127.0.0.1:$(head -n 1 "$TMP/silent")/text" --out "$TMP/silent-run" 2>"$TMP/.err" &
    job=$!
    for _ in {1..600}; do grep -q asked "$TMP/silent" && break; sleep 0.05; done
    claim "$ranks ranks: the run waits in its start" grep -q asked "$TMP/silent"
    begin=$(date +%s%N)
    kill -TERM $job
    wait $job
    rc=$? err=$(cat "$TMP/.err")
    claim "$ranks ranks: SIGTERM ends it" [ $rc = 1 ]
    claim "$ranks ranks: soon" [ $(($(date +%s%N) - begin)) -lt 8000000000 ]
    claim "$ranks ranks: in one line" one_line
    claim "$ranks ranks: and says what is lost" has "$err" \
        "stopped by a signal before the first step: nothing was trained or saved"
    kill $silent
    wait $silent 2>/dev/null
done
finish
