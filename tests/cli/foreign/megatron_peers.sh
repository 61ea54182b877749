#!/usr/bin/env bash
# all
# megatron_peers.sh - Megatron-Core itself loads the folders that reshard writes for it, at other degrees than
# they were written with: every parameter, master and moment, the next step of its optimizer, and its loss beside
# that of transformers; what it saves then is read by reshard to the same digests. PEER_PYTHON=python that has
# torch, safetensors, transformers and megatron-core 0.16.
here=$(cd "$(dirname "$0")" && pwd)
python=${PEER_PYTHON:-python3}
. "$here/../lib/megatron_lib.bash"
cd "$TMP" || exit 1
"$python" -c "import torch, safetensors, transformers, megatron.core" >/dev/null 2>&1 || {
    skip "no torch, safetensors, transformers and megatron-core here: set PEER_PYTHON"
    finish
}
for i in $(seq 60); do echo "line $i: $((i * i)) is the square of $i"; done >text

# loads NAME WRITTEN JOB…: a line for every job
loads() {
    local name=$1 written=$2 job
    shift 2
    run "$python" -B "$here/megatron_load.py" "$src" "$hf" "$written" "$@"
    for job in "$@"; do
        claim "$name: ${job%%=*}" has "$out" "$job ok" || tail -n 3 <<<"$err"
    done
}
# tensors DIR: a digest for each tensor
tensors() { "$BIN/reshard" digest --tensors "$1" | grep -v _digest; }

while IFS='|' read -r family options jobs; do
    train_model $family
    src=$family/step-2 hf=$family.hf
    run reshard --format hf $src $hf
    run reshard --format megatron-dist $options $src $family.mg
    claim "$family: written $options" [ $rc = 0 ] || continue
    loads $family $family.mg $jobs
    for back in saved.$family*; do
        cp $family.json "$back/config.json" 2>/dev/null || continue
        run diff <(tensors $src) <(tensors "$back")
        claim "$family: what Megatron-Core saved has the same tensors" [ $rc = 0 ]
    done
done <<'TABLE'
llama|--tp 4 --dp 2 --zero 1|full-2-1-1-1-save=saved.llama full-1-2-1-1 full-2-1-1-2 plain-2-1-1-1
qwen2||full-2-1-1-1 full-1-2-1-1
qwen3|--tp 2 --pp 2|full-1-1-1-2 full-2-2-1-1
mixtral||full-2-1-1-1 full-1-2-1-1
qwen2_moe|--pp 2|full-2-1-1-1
qwen3_moe|--ep 2 --dp 2|full-1-1-2-2-save=saved.qwen3_moe full-1-1-4-4 full-2-1-2-2
deepseek_v3|--ep 2 --dp 2 --zero 1|full-1-1-2-2 full-2-1-2-2
deepseek_plain||full-2-1-1-1-save=saved.deepseek_plain full-1-2-1-1
TABLE

# bf16 with masters
src=half hf=-
run reshard --dtype bf16 llama/step-2 half
run reshard --format megatron-dist half half.mg
loads "bf16" half.mg full-2-1-1-1 full-1-2-1-2 plain-1-2-1-1
finish
