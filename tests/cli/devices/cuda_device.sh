#!/usr/bin/env bash
# quick
# cuda_device.sh - the programs on a GPU give the CPU's bits, one rank and several that share it; without a
# GPU one line says so.
. "$(dirname "$0")/../lib/lib.bash"
echo "text" >"$TMP/probe"
run ptrain --data "$TMP/probe" --model tiny --steps 1 --seq-len 2 --global-batch 1 --out "$TMP/probed" \
    --transport nccl
claim "transport nccl without a GPU device is refused, and says what to do" [ "$rc" = 2 ] &&
    claim "by name" has "$err" "use --device cuda, or --transport auto"
run ptrain --data "$TMP/probe" --model tiny --steps 1 --seq-len 2 --global-batch 1 --out "$TMP/probed" \
    --device cuda
if [ $rc != 0 ]; then
    claim "--device cuda without a GPU is an error of one line" [ "$(wc -l <"$TMP/.err")" = 1 ]
    claim "that says what to do" grep -q "use --device cpu" "$TMP/.err"
    skip "no GPU here, or built without CUDA: $(cat "$TMP/.err")"
    finish
fi
device=cuda
. "$(dirname "$0")/../lib/device_cases.bash"
