#!/usr/bin/env bash
# all
# gpu_check.sh - tools/gpu-check itself, packed and run from the packed folder alone on the fake device: every
# part runs and reports; a time limit that is too short ends a part and is reported, and so is a missing GPU.
# Skips where the programs were built without CUDA.
. "$(dirname "$0")/../lib/lib.bash"
top=$(cd "$(dirname "$0")/../../.." && pwd)
run "$top/tools/gpu-check" run
claim "wrong usage is said" [ $rc = 2 ] && claim "with the usage" has "$err" "gpu-check pack DIR"
"$BIN/ptrain" --version | grep -q "devices cpu cuda" ||
    { skip "the programs were built without CUDA"; finish; }

command -v zstd >/dev/null || { skip "no zstd here"; finish; }
run env GPU_BUILD="$(cd "$BIN/.." && pwd)" "$top/tools/gpu-check" pack "$TMP/packed"
claim "it packs" [ $rc = 0 ] || finish
claim "what travels is less than 48 MiB, packed" [ "$(stat -c %s "$TMP/packed.tar.gz")" -lt $((48 << 20)) ]
mkdir -p "$TMP/there" && tar -C "$TMP/there" -xzf "$TMP/packed.tar.gz"

# away WORDS…: gpu-check as that machine runs it: nothing of this one's environment
away() {
    run env -i PATH=/usr/bin:/bin HOME="$TMP" "${@:2}" "$TMP/there/packed/gpu-check" run "$TMP/$1" ${parts:-}
}

parts= away whole SHARDLINE_DEVICE="$fake_device"
claim "every part ends well on the fake device: $(grep -o '"failed":.*' "$TMP/whole/figures.json")" [ $rc = \
    0 ]
for part in $("$TMP/there/packed/gpu-check" list | cut -d' ' -f1); do
    claim "the report has the part $part" grep -qx "## $part" "$TMP/whole/report.md"
done
claim "figures are there" grep -q '"products.linear.4096.bf16.exact":\[[0-9.]*,"TFLOP/s"\]' \
    "$TMP/whole/figures.json"
claim "of training" grep -q '"train.tiny.exact":\[[1-9][0-9.]*,"tokens/s"\]' "$TMP/whole/figures.json"
claim "of serving" grep -q '"serve.tiny.exact.clients16":\[[1-9][0-9.]*,"tokens/s"\]' \
    "$TMP/whole/figures.json"
claim "and nothing failed" grep -q '"failed":\[\]' "$TMP/whole/figures.json"

began=$SECONDS
parts="bits memory" away cut SHARDLINE_DEVICE="$fake_device" GPU_CHECK_PART_S=1
claim "parts with too little time are no success" [ $rc = 1 ] &&
    claim "and end" [ $((SECONDS - began)) -lt 60 ]
claim "the part says that it was cut" grep -qx "cut after 1 s" "$TMP/cut/report.md"
claim "and so do the figures" grep -q '"failed":\["bits: cut"' "$TMP/cut/figures.json"
parts="bits memory" away late SHARDLINE_DEVICE="$fake_device" GPU_CHECK_S=1
claim "a part that did not begin says so" grep -q "^memory: no time left" "$TMP/late/report.md"

parts=machine away none CUDA_VISIBLE_DEVICES=
claim "without a GPU it ends in 3" [ $rc = 3 ]
claim "and says why" grep -qE "no GPU here" "$TMP/none/report.md"
finish
