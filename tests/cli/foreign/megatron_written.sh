#!/usr/bin/env bash
# quick sanitize
# megatron_written.sh - what reshard writes for Megatron: every family that Megatron has layers for, at every
# layout and back gives the digests again; a walk without any framework finds the arrays that Megatron asks
# for, element by element; the same state gives the same bytes; what has no place there is refused by name.
# ALL=1: more families (megatron_written_all.sh). Megatron-Core itself: megatron_peers.sh.
here=$(cd "$(dirname "$0")" && pwd)
. "$here/../lib/megatron_lib.bash"
cd "$TMP" || exit 1
for i in $(seq 60); do echo "line $i: $((i * i)) is the square of $i"; done >text

digest() { run reshard digest "$1"; echo "$out"; }

# there NAME SRC OPTIONS…: to Megatron in w and back at tp 2: the digests of SRC
there() {
    local name=$1 src=$2 want
    shift 2
    want=$(digest "$src")
    rm -rf w n
    run reshard --format megatron-dist "$@" "$src" w
    claim "$name $*: written" [ $rc = 0 ] || return
    claim "$name $*: read as it is, the same digests" [ "$(digest w)" = "$want" ]
    run reshard --tp 2 w n
    claim "$name $*: and back, the same digests" [ $rc = 0 -a "$(digest n)" = "$want" ]
}

layouts=("" "--tp 2 --pp 2 --dp 3 --zero 3")
families="llama mixtral deepseek_v3"
[ "${ALL:-0}" = 1 ] && families="$families biases mistral qwen2 qwen3 qwen2_moe qwen3_moe deepseek_plain" &&
    layouts+=("--tp 4 --dp 2 --zero 1" "--pp 2")
for family in $families; do
    train_model $family
    for layout in "${layouts[@]}"; do
        there $family $family/step-2 $layout
    done
    case $family in
        mixtral | deepseek* | *_moe) there $family $family/step-2 --ep 2 --dp 2 --zero 1 ;;
    esac
done

# bf16 with masters, weights alone, without the vocabulary of any multiple
run reshard --dtype bf16 llama/step-2 half
there half half --tp 2 --dp 2 --zero 3
run reshard --weights-only mixtral/step-2 light
there light light --tp 2
run reshard inspect w
claim "without optimizer state it says so" has "$out" absent

# the same state, the same bytes, by one process and by two
run reshard --format megatron-dist --tp 2 mixtral/step-2 m1
run reshard --tp 2 --ep 2 --dp 2 --zero 1 mixtral/step-2 cut
run reshard --format megatron-dist --tp 2 cut m2
claim "the same state gives the same bytes" diff -r m1 m2
run reshard --ranks 2 --format megatron-dist --tp 2 mixtral/step-2 m3
claim "also when two processes wrote them" diff -r m1 m3

# training goes on from it with its settings and data
run ptrain --data text --resume m1 --steps 3 --stop-after 3 --seq-len 15 --global-batch 4 --threads 1 --out on
bits=$out
run ptrain --data text --resume mixtral/step-2 --steps 3 --stop-after 3 --seq-len 15 --global-batch 4 --threads 1 \
    --out on2
claim "training goes on to the same bits" [ $rc = 0 -a "${bits%,*}" = "${out%,*}" ]

# what Megatron asks for, read by a walk that shares no code with reshard
if command -v python3 >/dev/null; then
    for family in llama mixtral; do
        for f in 1 2; do
            run reshard --format hf $family/step-2 $family.hf
            run reshard --format megatron-dist --tp $f $family/step-2 $family.mg$f
            run python3 -B "$here/megatron_walk.py" $family.mg$f $family.hf
            claim "$family on $f: every element of Megatron's arrays" has "$out" "arrays have the right elements"
        done
    done
    run python3 -B "$here/megatron_walk.py" mixtral.mg1
    echo "$out" >walked
    run diff "$here/megatron_written.walk" walked
    claim "keys, shapes and common.pt of a Mixtral are the recorded ones" [ $rc = 0 ] || echo "$out"
    run reshard --format megatron-dist --ep 2 --dp 2 deepseek_v3/step-2 d2
    run python3 -B "$here/megatron_walk.py" d2
    claim "layers that differ have arrays of their own" has "$out" \
        "decoder.layers.1.mlp.experts.experts.linear_fc1.weight [4, 32, 24] float32"
    claim "of the layers that have them" [ -z "$(grep decoder.layers.0.mlp.experts <<<"$out")" ]
    claim "experts divided over ranks have an optimizer of their own" has "$out" '"is_expert_parallel": true'
fi

# a changed byte of data is noticed
if command -v python3 >/dev/null; then
    python3 - m1/__1_1.distcp <<'PY'
import sys
b = bytearray(open(sys.argv[1], "rb").read())
b[b.find(b"/data/0") + 80] ^= 4
open(sys.argv[1], "wb").write(b)
PY
    run reshard verify m1
    claim "a changed bit is noticed" [ $rc = 1 ] && claim "and named" has "$err" __1_1.distcp
fi

# what has no place there
train_model gpt2
while IFS='|' read -r options src says; do
    run reshard --format megatron-dist $options "$src" x
    claim "$options $src: refused" [ $rc = 2 ]
    claim "$options $src: by name: $says" has "$err" "$says"
    claim "$options $src: nothing appears" [ ! -e x ]
done <<'TABLE'
|gpt2/step-2|not of gpt2: use --format dcp
--shard-size 1MB|llama/step-2|--shard-size is for --format hf
--compress zstd|llama/step-2|--compress is for --format native
--experts fused|mixtral/step-2|--experts fused is for --format hf
TABLE
finish
