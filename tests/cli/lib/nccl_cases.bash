# nccl_cases.bash - the NCCL transport on the fake device, with a stand-in for NCCL
# (tests/devices/fake_nccl.c). Shared by nccl.sh and nccl_all.sh.
. "$(dirname "${BASH_SOURCE[0]}")/train_lib.bash"
library=$BIN/../tests/devices/libnccl.so.2
[ -e "$library" ] || { skip "no $library: make tests"; finish; }
text 1 60000 >"$TMP/text"
config "$TMP/gqa.json"
common=(--data "$TMP/text" --model "$TMP/gqa.json" --steps 3 --seq-len 63 --global-batch 8 --threads 1)
by_nccl="goes between ranks by NCCL"

on_gpus() { SHARDLINE_DEVICE=$fake_device SHARDLINE_NCCL=$library "$@"; }
# here WHAT ARGS…: the same bits over NCCL
here() {
    on_gpus same "nccl: $1" --device cuda --transport nccl "${@:2}" &&
        claim "nccl: $1: says so" has "$err" "$by_nccl"
}

# experts FAMILY ARGS…: a mixture of experts from here on, and its reference
experts() {
    family "$TMP/model.json" "$1"
    common=(--data "$TMP/text" --model "$TMP/model.json" --steps 2 --seq-len 63 --global-batch 8 --threads 1 \
        "${@:2}")
    reference
}

# fault WHAT FAULT SECONDS LINE ARGS…: the job ends by itself within SECONDS and prints one line that contains
# LINE
fault() {
    local what=$1 fault=$2 limit=$3 line=$4 began=$EPOCHSECONDS
    shift 4
    rm -rf "$TMP/faulty"
    FAKE_NCCL_FAULT=$fault on_gpus run timeout -k 10 60 "$BIN/ptrain" "${common[@]}" --out "$TMP/faulty" \
        --device cuda --transport nccl "$@"
    claim "$what: it ends, not well" [ $rc -ne 0 -a $rc -ne 124 ]
    claim "$what: within $limit s" [ $((EPOCHSECONDS - began)) -le "$limit" ]
    claim "$what: says $line" has "$err" "$line"
    claim "$what: one line" [ "$(grep -vc "$ptrain_usual"'\|goes between ranks' "$TMP/.err")" = 1 ]
    claim "$what: no checkpoint" [ ! -e "$TMP/faulty/step-3" ]
    claim "$what: no process is left" no_process_left "$TMP/faulty"
}
no_process_left() { sleep 0.2; ! pgrep -f -- "--out $1" >/dev/null; }
