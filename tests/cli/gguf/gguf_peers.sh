#!/usr/bin/env bash
# all
# gguf_peers.sh - what llama.cpp makes of the files that `--format gguf` writes: of every architecture and type of
# blocks its log-probabilities are pserve's, its quantiser has our blocks, its tokenizer our tokens; the gguf
# package reads every key. PEER_PYTHON=python that has llama-cpp-python and gguf; LLAMA_CPP=folder of llama.cpp's source: its
# convert_hf_to_gguf makes the same tensors and keys (its python needs torch, transformers, sentencepiece).
# Needs $FIXTURES.
here=$(cd "$(dirname "$0")" && pwd)
python=${PEER_PYTHON:-python3}
. "$here/../lib/lib.bash"
[ -n "${FIXTURES:-}" ] || { skip "FIXTURES is not set"; finish; }
"$python" -c 'import llama_cpp, gguf, numpy' >/dev/null 2>&1 ||
    { skip "no llama-cpp-python and gguf here: set PEER_PYTHON"; finish; }
cd "$TMP" || exit 1

peer() { run "$python" -B "$here/gguf_peers.py" "$@"; }
# copy NAME FROM SED: a folder with another config.json
copy() {
    cp -r "$2" "$1" && chmod -R u+w "$1" && sed -i -E "$3" "$1/config.json"
}
"$python" - <<'PY'
import random, struct
random.seed(5)
open("ids.u16", "wb").write(struct.pack("<241H", *(random.randrange(300) for _ in range(241))))
PY

# where llama.cpp computes otherwise (windows of llama, the divisor of Gemma's scores, untruncated YaRN) the
# config is one with which it does not
hf=$FIXTURES/hf/hf experts=$FIXTURES/experts/hf
copy mistral "$hf/mistral-swa-f32/model" 's/"sliding_window": [0-9]+/"sliding_window": null/'
copy gemma2 "$hf/gemma2-f32/model" 's/"query_pre_attn_scalar": [0-9]+/"query_pre_attn_scalar": 16/'
copy gemma3 "$hf/gemma3-f32/model" 's/"query_pre_attn_scalar": [0-9]+/"query_pre_attn_scalar": 8/'
copy gptoss "$experts/gptoss-f32/model" 's/"truncate": false/"truncate": true/'
echo '{"model_type":"qwen3_moe","hidden_size":64,"num_hidden_layers":3,"num_attention_heads":4,"num_key_value_heads":2,"head_dim":16,"intermediate_size":64,"moe_intermediate_size":32,"num_experts":6,"num_experts_per_tok":2,"norm_topk_prob":true,"vocab_size":320,"max_position_embeddings":128,"tie_word_embeddings":true,"initializer_range":0.3,"rms_norm_eps":1e-6}' >qwen3moe.json
run ptrain --model qwen3moe.json --data ids.u16 --steps 1 --seq-len 16 --global-batch 1 --lr 1e-9 --out run --threads 1
claim "a model of qwen3_moe is made" [ $rc = 0 ]
run reshard --format hf --weights-only run/step-1 qwen3moe

# gelu of gpt2 and gptneox, and products with bf16, are rounded to 16 bits inside of llama.cpp
while read -r model bound; do
    src=$model
    [ -d "$hf/$model/model" ] && src=$hf/$model/model
    [ -d "$experts/$model/model" ] && src=$experts/$model/model
    run reshard --format gguf "$src" "$model.gguf"
    claim "$model is written" [ $rc = 0 ]
    peer keys "$model.gguf"
    claim "$model: the gguf package reads it" has "$out" "ok "
    # a file does not say how YaRN is rounded: ours is read as gpt-oss is published, without
    peer logprobs "$model.gguf" "$bound" "$src" $([ "$model" = gptoss ] || echo "$model.gguf")
    claim "$model: log-probabilities of llama.cpp are pserve's of the source and of the file" has "$out" "ok "
    echo "$model: $out"
done <<'TABLE'
llama2-mha-f32 1e-4
llama3-gqa-f32 1e-4
llama3-tied-bf16-sharded 0.3
mistral 1e-4
mixtral-f32-sharded 1e-4
qwen2-bias-tied-f32 1e-4
qwen2-yarn-f32 1e-4
qwen3-qknorm-bf16 0.3
qwen2moe-f32 1e-4
qwen3moe 1e-4
gemma2 1e-2
gemma3 1e-2
gpt2-f32 1e-2
neox-f32 1e-2
gptoss 1e-3
deepseek3-f32 1e-3
TABLE

# blocks: those of llama.cpp's own quantiser, from the file that we wrote
echo '{"model_type":"llama","hidden_size":256,"num_hidden_layers":2,"num_attention_heads":4,"num_key_value_heads":2,"intermediate_size":512,"vocab_size":320,"max_position_embeddings":128,"tie_word_embeddings":true,"initializer_range":0.05,"rms_norm_eps":1e-6}' >llama.json
head -c 4000 /dev/urandom >bytes
run ptrain --model llama.json --data bytes --steps 1 --seq-len 16 --global-batch 1 --out run-llama --threads 1
run reshard --format gguf run-llama/step-1 plain.gguf
# its numbers are ours; its own products with blocks round the other side to 8 bits
same() { # FILE BOUND CKPT: the numbers of the blocks, and its products with the blocks themselves
    peer numbers "$1" "$1.fp32.gguf"
    peer logprobs "$1.fp32.gguf" 1e-4 "$3"
    claim "$1: numbers of its blocks" has "$out" "ok "
    peer logprobs "$1" "$2" "$3"
    claim "$1: llama.cpp's log-probabilities are pserve's of the same numbers" has "$out" "ok "
    echo "$1: $out"
}
for kind in q8_0 q4_0 q4_k q5_k q6_k mxfp4; do
    run reshard --format gguf --quantize $kind run-llama/step-1 $kind.gguf
    claim "$kind is written" [ $rc = 0 ]
    run reshard --format hf --dequantize fp32 $kind.gguf $kind
    same $kind.gguf 0.15 $kind
    [ $kind != mxfp4 ] || continue # its quantiser takes experts alone
    peer blocks plain.gguf $kind.gguf $kind
    claim "$kind: blocks of llama.cpp's quantiser" has "$out" "ok "
    echo "$kind: $out"
done
echo '{"model_type":"gpt_oss","hidden_size":64,"intermediate_size":64,"num_hidden_layers":2,"num_attention_heads":4,"num_key_value_heads":2,"head_dim":32,"vocab_size":320,"num_local_experts":4,"num_experts_per_tok":4,"sliding_window":16,"layer_types":["sliding_attention","full_attention"],"max_position_embeddings":128,"initializer_range":0.3,"tie_word_embeddings":false}' >oss.json
run ptrain --model oss.json --data ids.u16 --steps 1 --seq-len 16 --global-batch 1 --lr 1e-9 --out run-oss --threads 1
run reshard --format hf --weights-only --quantize mxfp4 run-oss/step-1 oss
run reshard --format gguf oss oss.gguf
run reshard --format hf --dequantize fp32 oss oss-fp32
same oss.gguf 0.5 oss-fp32

# tokens: a small model with each tokenizer. gemma, llama2 and mistral here were trained with merges that
# llama.cpp cannot have, of which reshard warns. Its qwen2 does not compose characters (NFC).
while read -r name least; do
    size=$("$python" -c 'import json, sys; t = json.load(open(sys.argv[1])); print(max([*t["model"]["vocab"].values(), *(a["id"] for a in t["added_tokens"])]) + 1)' \
        "$FIXTURES/hf/tok/$name/tokenizer.json")
    sed -E "s/320,\"max/$size,\"max/; s/\"hidden_size\":256/\"hidden_size\":32/; s/_layers\":2/_layers\":1/" \
        llama.json >small.json
    run ptrain --model small.json --data ids.u16 --steps 1 --seq-len 16 --global-batch 1 --out "run-$name" --threads 1
    run reshard --format hf --weights-only "run-$name/step-1" "tok-$name"
    cp "$FIXTURES/hf/tok/$name"/tokenizer*.json "tok-$name"
    run reshard --format gguf "tok-$name" "tok-$name.gguf"
    claim "a file with the tokenizer $name" [ $rc = 0 ]
    claim "$name: a warning where words may differ, else none" \
        [ "$(has "$err" "may divide some words otherwise" && echo 1)" = "$([ "$least" = exact ] || echo 1)" ]
    peer tokens "tok-$name.gguf" "$FIXTURES/hf/tok/$name"
    echo "$name: $out"
    claim "$name: tokens of llama.cpp" has "$out" "ok "
    set -- $out
    [ "$least" != exact ] || claim "$name: all of them" [ "$2" = "$4" ]
done <<'TABLE'
gpt2 exact
llama3 exact
qwen2 exact
deepseek exact
gemma some
llama2 some
mistral some
TABLE

# pre-tokenizers by name: ours of the file's merges, and llama.cpp's
peer pre tok-llama3.gguf "$FIXTURES/hf/tok/llama3" gpt-2 llama-bpe dbrx glm4 minicpm5 qwen2 stablelm2 qwen35 ufakzeka \
    seed-coder bailingmoe smollm falcon tekken gpt-4o deepseek-v3 spark2_5 deepseek-llm deepseek-coder bloom viking default
claim "every pre-tokenizer" has "$out" "of 22 names"
echo "pre-tokenizers: $out"

if [ -n "${LLAMA_CPP:-}" ]; then
    while read -r model; do
        peer convert "$hf/$model/model" "$model.gguf" "$LLAMA_CPP"
        claim "$model: tensors and keys of convert_hf_to_gguf" has "$out" "ok "
        echo "$model: $out"
    done <<'TABLE'
llama2-mha-f32
llama3-gqa-f32
llama3-tied-bf16-sharded
mixtral-f32-sharded
qwen2-bias-tied-f32
qwen2-yarn-f32
qwen3-qknorm-bf16
TABLE
    mkdir set
    peer split "$hf/mixtral-f32-sharded/model" set/x.gguf "$LLAMA_CPP"
    run reshard diff "$hf/mixtral-f32-sharded/model" set/x-00001-of-00004.gguf
    claim "its set of files is the folder" [ $rc = 0 ]
else
    skip "LLAMA_CPP is not set: convert_hf_to_gguf is not asked"
fi
finish
