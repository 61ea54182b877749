#!/usr/bin/env bash
# quick long
# nccl.sh - the NCCL transport without a GPU: trainings over it have one CPU rank's bits, it is chosen where
# it can be, and every fault ends the job with one line. More layouts: nccl_all.sh.
. "$(dirname "$0")/../lib/nccl_cases.bash"

reference
here "dp, gradients summed beside the backward pass" --ranks 2
here "ZeRO-2" --ranks 2 --zero 2 --micro-batch 2
here "kv heads replicated, vocabulary split, ZeRO-3 with its counter" --tp 4 --ranks 8 --zero 3 \
    --micro-batch 1
here "pipeline, ZeRO-1" --pp 2 --ranks 4 --zero 1 --micro-batch 2

# ---- who uses it ----
# chosen WHAT LINE ARGS…: with --transport auto the log says LINE, and the bits stay
chosen() {
    same "auto: $1" --device cuda --transport auto --ranks 2 "${@:3}" &&
        claim "auto: $1: says so" has "$err" "$2"
}
on_gpus chosen "a GPU a rank and the library" "$by_nccl"
SHARDLINE_FAKE_GPUS=1 on_gpus chosen "one GPU for two ranks" \
    "through the host (shm): transport nccl needs a GPU for every rank, ranks 0 and 1 have one together"
SHARDLINE_DEVICE=$fake_device SHARDLINE_NCCL=$TMP/none.so chosen "no library" \
    "through the host (shm): $TMP/none.so is not here"

# refused WHAT STATUS LINE: --transport nccl is an error of one line
refused() {
    run timeout -k 10 60 "$BIN/ptrain" "${common[@]}" --out "$TMP/refused" --ranks 2 --device cuda \
        --transport nccl
    claim "$1: status $2" [ $rc = "$2" ] && claim "$1: says $3" has "$err" "$3" &&
        claim "$1: one line" [ "$(wc -l <"$TMP/.err")" = 1 ]
}
SHARDLINE_FAKE_GPUS=1 on_gpus refused "two ranks on one GPU" 2 "ranks 0 and 1 have one together"
SHARDLINE_DEVICE=$fake_device SHARDLINE_NCCL=$TMP/none.so refused "no library" 1 "none.so is not here"
SHARDLINE_DEVICE=$fake_device SHARDLINE_NCCL=libc.so.6 refused "a library that is another" 1 "too old"
run ptrain "${common[@]}" --out "$TMP/refused" --ranks 2 --device cpu --transport nccl
claim "no GPU: status 2" [ $rc = 2 ] && claim "no GPU: says so" has "$err" "transport nccl needs a GPU"

# ---- fast: the library adds, in its own order ----
train fast --numerics fast --ranks 4
tree_state=$state tree_bits=$bits
on_gpus train fast --numerics fast --ranks 4 --device cuda --transport nccl
claim "fast: runs" [ $rc = 0 ]
claim "fast: as many steps, the first of the same loss" [ "$(wc -l <<<"$bits") ${bits%% *}" = \
    "$(wc -l <<<"$tree_bits") ${tree_bits%% *}" ]
claim "fast: not in the tree's order" [ "$state" != "$tree_state" ]
here_exact=$(on_gpus train exact --ranks 4 --device cuda --transport nccl; echo "$state")
claim "exact beside it: in the tree's order" [ "$here_exact" = "$ref_state" ]

# ---- what goes wrong ----
fault "a rank killed" kill:1:20 10 "rank 1 died" --ranks 2 --zero 2
fault "an error of the library's threads" async:1:20 10 \
    ": NCCL: an operation under way: remote process exited" --ranks 2
fault "a call refused" refuse:0:20 10 "internal error" --ranks 2 --zero 3
fault "a rank that never comes" stay:1:10 12 "rank 1 did not enter all_reduce" --tp 2 --rank-timeout 2
fault "a rank that NCCL cannot reach" apart:1:1 12 \
    "joining a group (all): its ranks do not reach each other for 2 s" --ranks 2 --rank-timeout 2
fault "a rank that NCCL cannot reach in a later group" apart:1:2 12 "do not reach each other" --ranks 4 --tp \
    2 --rank-timeout 2
fault "a rank that hangs in the library" hang:2:9 12 "rank 2 hangs in" --ranks 4 --tp 2 --rank-timeout 2

# ---- rows of experts ----
experts qwen2_moe
here "rows of experts, the shared expert beside them" --tp 2 --ep 4 --ranks 4 --zero 2 --micro-batch 2
fault "a rank that hangs in an exchange of rows" hang:1:3 12 "rank 1 hangs in all_to_all" --ranks 2 --ep 2 \
    --rank-timeout 2
finish
