#!/usr/bin/env bash
# quick
# quant_trips.sh - dequantised checkpoints come back as published after any way through formats and layouts, and
# quantised ones and what --dequantize keeps of them are read by URL.
here=$(cd "$(dirname "$0")" && pwd)
. "$here/../lib/lib.bash"
command -v python3 >/dev/null || { skip "no python3 here"; finish; }
cd "$TMP" || exit 1
export SHARDLINE_CACHE=$TMP/cache no_proxy=127.0.0.1,localhost
make() { python3 -B "$here/../lib/quant_make.py" "$@"; }
make sane src 5 fp8-block nvfp4-modelopt gptq-order >names

# via WORDS TARGET: the next checkpoint of the way
via() {
    local to=$2 words
    read -ra words <<<"$1"
    run reshard "${words[@]}" "$last" "$to"
    claim "$scheme: $1" [ $rc = 0 ]
    last=$to
}

: >pairs
while read -r scheme; do
    last=src/$scheme
    via "--dequantize bf16 --tp 2 --dp 2 --zero 3" a-"$scheme"
    run reshard digest a-"$scheme"
    values=$out
    via "--format dcp --dp 3" b-"$scheme"
    via "--tp 2 --pp 2" c-"$scheme"
    via "--requantize --tp 4" d-"$scheme"
    via "--format hf" back-"$scheme"
    echo "src/$scheme back-$scheme" >>pairs
    last=b-$scheme
    via "--requantize --format hf" dcp-"$scheme"
    echo "src/$scheme dcp-$scheme" >>pairs
    last=src/$scheme
    via "--format dcp --dp 2" f-"$scheme"
    via "--format hf" g-"$scheme"
    echo "src/$scheme g-$scheme" >>pairs
    last=src/$scheme
    via "--dequantize fp32 --dtype bf16 --format hf" m-"$scheme"
    via "--requantize --format hf" n-"$scheme"
    echo "src/$scheme n-$scheme" >>pairs
    last=src/$scheme
    via "--dequantize fp32 --dtype fp32 --format deepspeed-universal" o-"$scheme"
    via "--requantize --dp 2" p-"$scheme"
    last=src/$scheme
    via "--dequantize bf16 --format megatron-dist --tp 2" q-"$scheme"
    claim "$scheme: Megatron gets the weights alone" [ ! -e q-"$scheme"/quantized.json ]
    via "--format hf" r-"$scheme"
    last=d-$scheme
    via "--dequantize bf16 --format hf" e-"$scheme"
    run reshard diff r-"$scheme" e-"$scheme"
    claim "$scheme: values of Megatron's weights" [ "$(grep -vc '^quantized\.' <<<"$out")" = 1 ]
    run reshard digest e-"$scheme"
    claim "$scheme: one digest of values before and after" [ "$out" = "$values" ]
done <names
claim "ZeRO-3, DCP, tp and pp give the published bytes again" make same_all pairs

# ---- by URL: ranges of codes and scales; quantized.tensors, which no index names ----
mkdir served
cp -r src/gptq-order served/q
cp -r e-fp8-block served/kept
make sane src 5 mxfp4 >names
cp src/mxfp4/* served/
file_server served "$TMP/log"
at=http://127.0.0.1:$port
: >pairs
for how in ok cut; do
    scheme=$how last=$at/$how/q
    via "--tp 4" f-$how
    via "--format hf" g-$how
    last=$at/$how/kept
    via "--requantize --format hf" h-$how
    printf '%s\n' "src/gptq-order g-$how" "src/fp8-block h-$how" >>pairs
    rm -rf cache
done
export HF_ENDPOINT=$at/hub HF_TOKEN=secret
scheme=hub last=hf://owner/name
via "--dp 2 --ep 2" i
via "--format hf" j
echo "src/mxfp4 j" >>pairs
last=hf://owner/name
via "--dequantize bf16" k
run reshard digest k
values=$out
run reshard --dequantize bf16 src/mxfp4 l
run reshard digest l
claim "hub: the values of the file at hand" [ "$out" = "$values" ]
claim "by URL, byte for byte" make same_all pairs
claim "weights are read by range" grep -q 'q/model.safetensors.*bytes=' log
finish
