#!/usr/bin/env bash
# quick sanitize
# foreign_written.sh - what reshard writes for PyTorch DCP and DeepSpeed: every layout of source and target
# and back gives the digests again, the same state the same bytes, a changed byte is noticed, and what a
# format cannot hold is refused by name. ALL=1: every family (foreign_written_all.sh).
here=$(cd "$(dirname "$0")" && pwd)
. "$here/../lib/lib.bash"
cd "$TMP" || exit 1
for i in $(seq 100); do echo "line $i: $((i * i)) is the square of $i"; done >text
llama='"model_type":"llama","hidden_size":24,"num_hidden_layers":2,"num_attention_heads":4,"num_key_value_heads":2,"intermediate_size":40,"vocab_size":256,"max_position_embeddings":64,"rms_norm_eps":1e-5,"rope_theta":10000.0'

digest() { run reshard digest "$1"; echo "$out"; }

# train NAME CONFIG OPTIONS…: OUT/step-2
train() {
    local name=$1 config=$2
    shift 2
    echo "{$config}" >"$name.json"
    run ptrain --data text --model "$name.json" --steps 3 --stop-after 2 --seq-len 15 --global-batch 4 \
        --threads 1 --seed 7 --out "$name" "$@"
    claim "$name is trained" [ $rc = 0 ]
}

# there SRC FORMAT LAYOUT…: into the format and back as tp 2: the digests of SRC
there() {
    local src=$1 format=$2 want
    shift 2
    want=$(digest "$src")
    rm -rf w n
    run reshard --format "$format" "$@" "$src" w
    claim "$src to $format $*" [ $rc = 0 ] || return
    claim "$src $format $*: read as it is, the same digests" [ "$(digest w)" = "$want" ]
    run reshard --tp 2 --dp 2 --zero 1 w n
    claim "$src $format $*: and back" [ $rc = 0 ]
    claim "$src $format $*: the same digests" [ "$(digest n)" = "$want" ]
}

train whole "$llama,\"tie_word_embeddings\":false"
run reshard --tp 4 --dp 2 --zero 3 whole/step-2 cut
for layout in "" "--tp 2 --dp 5 --zero 3" "--tp 4 --pp 2 --dp 2 --zero 1"; do
    there cut dcp $layout
done
there cut deepspeed-universal
mv w universal
run reshard --format deepspeed-universal whole/step-2 again
claim "the same state gives the same bytes: universal" diff -r universal again
run reshard --format dcp --tp 2 --dp 2 --zero 3 whole/step-2 d1
run reshard --format dcp --tp 2 --dp 2 --zero 3 universal d2
claim "the same state gives the same bytes: dcp" diff -r d1 d2
run reshard --ranks 2 --format dcp --tp 2 --dp 2 --zero 3 whole/step-2 d3
claim "also when two processes wrote them" diff -r d1 d3
run reshard inspect d1
claim "inspect says what it is" has "$out" dcp
run ptrain --data text --resume d1 --steps 3 --stop-after 3 --seq-len 15 --global-batch 4 --threads 1 --out \
    from-dcp
bits=$out
claim "and with its data where they were, which is said" has "$err" "data go on where its run was"
run ptrain --data text --resume whole/step-2 --steps 3 --stop-after 3 --seq-len 15 --global-batch 4 \
    --threads 1 --out from-native
claim "training goes on from dcp to the same bits" [ $rc = 0 -a "${bits%,*}" = "${out%,*}" ]
rm -rf from-*

# experts by themselves, latent attention, layers that differ; expert parallel with ZeRO
. "$here/../lib/megatron_lib.bash"
for family in mixtral deepseek_v3; do
    train_model $family
    there $family/step-2 dcp --tp 2 --ep 2 --dp 2 --zero 3
    there $family/step-2 dcp --ep 2 --dp 4 --zero 1
    there $family/step-2 deepspeed-universal
done

# a model that only a cut table knows
run reshard inspect --cuts whole/step-2
echo "$out" >table
sed 's/"model_type":"llama"/"model_type":"new"/' whole.json >new.json
run reshard --config new.json --cuts table whole/step-2 strange
claim "a model without a family" [ $rc = 0 ]
for to in "dcp --tp 2 --pp 2 --dp 2 --zero 1" deepspeed-universal; do
    want=$(digest strange)
    rm -rf w
    run reshard --format $to strange w
    claim "strange to $to" [ $rc = 0 ]
    claim "strange as $to: the same digests" [ "$(digest w)" = "$want" ]
done
run reshard --format megatron-dist strange w2
claim "Megatron has no layers for it: by name" has "$err" "not of new: use --format dcp"

# bf16 with masters; weights only
run reshard --dtype bf16 whole/step-2 half
there half dcp --tp 2 --dp 3 --zero 3
there half deepspeed-universal
run reshard --weights-only whole/step-2 light
there light dcp --tp 2
there light deepspeed-universal
claim "without optimizer state no optimizer file is there" [ ! -e \
    w/global_step0_universal/zero/lm_head.weight/exp_avg.pt ]

# what they cannot hold
while IFS='|' read -r options src says; do
    run reshard $options "$src" x
    claim "$options: refused" [ $rc = 2 ]
    claim "$options: by name" has "$err" "$says"
    claim "$options: nothing appears" [ ! -e x ]
done <<'TABLE'
--format deepspeed-universal --weights-only|half|lm_head.weight is BF16 without an fp32 master: --format deepspeed-universal holds fp32 weights: add --dtype fp32
--format deepspeed-universal --tp 2|half|--format deepspeed-universal holds whole tensors: leave --tp, --pp, --dp, --ep and --zero out
--format dcp --shard-size 1MB|half|--shard-size is for --format hf
--format dcp --compress zstd|half|--compress is for --format native
TABLE

# one changed byte of data anywhere is noticed by verify and by a conversion (each record has a CRC-32)
if command -v python3 >/dev/null; then
    for f in d1/__1_0.distcp d1/__3_1.distcp \
        universal/global_step2_universal/zero/model.norm.weight/exp_avg_sq.pt; do
        cp "$f" kept
        python3 - "$f" <<'PY'
import sys
b = bytearray(open(sys.argv[1], "rb").read())
at = b.find(b"/data/0") + 80         # in the first storage: at most 67 bytes of filler come before it
b[at] ^= 4
open(sys.argv[1], "wb").write(b)
PY
        run reshard verify "${f%%/*}"
        claim "$f: a changed bit is noticed" [ $rc = 1 ] && claim "$f: and named" has "$err" "${f##*/}"
        run reshard "${f%%/*}" x
        claim "$f: nothing is made of it" [ $rc = 1 -a ! -e x ]
        mv kept "$f"
    done
fi
rm d1/__2_1.distcp
run reshard verify d1
claim "a missing file is named" has "$err" __2_1.distcp

if [ "${ALL:-0}" = 1 ]; then
    train tied "$llama,\"tie_word_embeddings\":true"
    train mistral "${llama/llama/mistral},\"sliding_window\":8,\"tie_word_embeddings\":false"
    train qwen2 "${llama/llama/qwen2},\"tie_word_embeddings\":false"
    train qwen3 "${llama/llama/qwen3},\"head_dim\":6,\"tie_word_embeddings\":true"
    train gpt2 '"model_type":"gpt2","n_embd":24,"n_layer":2,"n_head":4,"n_positions":64,"vocab_size":256'
    train decayless "$llama,\"tie_word_embeddings\":false" --weight-decay 0
    train bf16 "$llama,\"tie_word_embeddings\":false" --dtype bf16
    for family in tied mistral qwen2 qwen3 gpt2 decayless bf16; do
        there $family/step-2 dcp --tp 2 --dp 3 --zero 3
        there $family/step-2 dcp --tp 2 --pp 2
        there $family/step-2 deepspeed-universal
    done
fi
finish
