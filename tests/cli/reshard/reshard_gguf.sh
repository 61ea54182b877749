#!/usr/bin/env bash
# quick
# reshard_gguf.sh - `--format gguf`: the tensors of every family are, byte for byte, those of a file that
# another program made of the same numbers; where DST is, what is logged, what is refused.
here=$(cd "$(dirname "$0")" && pwd)
. "$here/../lib/lib.bash"
command -v python3 >/dev/null || { skip "no python3 here"; finish; }
cd "$TMP" || exit 1

cat >same.py <<'PY'
"""Arguments: two GGUF files. They have the same tensors, byte for byte."""
import struct, sys
def read(path):
    b, at = open(path, "rb").read(), 24
    def number(form):
        nonlocal at
        at += struct.calcsize(form)
        return struct.unpack_from("<" + form, b, at - struct.calcsize(form))[0]
    def text():
        nonlocal at
        n = number("Q")
        at += n
        return b[at - n : at]
    def skip(kind):
        nonlocal at
        if kind == 8:
            text()
        elif kind == 9:
            of, n = number("I"), number("Q")
            for _ in range(n):
                skip(of)
        else:
            at += [1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8][kind]
    assert b[:8] == b"GGUF\3\0\0\0"
    n_tensors, n_keys = struct.unpack_from("<QQ", b, 8)
    for _ in range(n_keys):
        text()
        skip(number("I"))
    rows = []
    for _ in range(n_tensors):
        name = text()
        dims = [number("Q") for _ in range(number("I"))]
        rows.append((name, dims, number("I"), number("Q")))
    data = -(-at // 32) * 32
    tensors = {}
    for name, dims, kind, off in rows:
        size = {0: 4, 1: 2, 30: 2}[kind]
        for d in dims:
            size *= d
        assert off % 32 == 0 and data + off + size <= len(b)
        tensors[name] = (dims, kind, b[data + off : data + off + size])
    return tensors
a, b = read(sys.argv[1]), read(sys.argv[2])
differ = [n for n in sorted(set(a) | set(b)) if a.get(n) != b.get(n)]
sys.exit("tensors differ: %s" % differ[:4] if differ else 0)
PY

python3 -B "$lib_dir/gguf_make.py" made || claim "models are made" false
for dir in made/*/; do
    family=$(basename "$dir")
    run reshard --format gguf "made/$family/model.gguf" "$family.gguf"
    claim "$family is written" [ $rc = 0 ]
    claim "$family: the bytes of another program" python3 same.py "$family.gguf" "made/$family/model.gguf"
    run reshard diff "made/$family/hf" "$family.gguf"
    claim "$family: read again it is the Hugging Face folder" [ $rc = 0 ]
done

# ---- DST ----
run reshard --format gguf made/llama/model.gguf folder
claim "a DST without .gguf is a folder" [ "$(ls folder)" = model.gguf ]
claim "with the same file" cmp -s folder/model.gguf llama.gguf
claim "nothing is left beside them" [ -z "$(ls -d ./*.tmp-save* 2>/dev/null)" ]
run reshard --format gguf made/llama/model.gguf llama.gguf
claim "an existing file stays" [ $rc = 1 ]
claim "and is named" has "$err" "llama.gguf exists"
run reshard --threads 3 --format gguf made/qwen3moe/model.gguf again.gguf
claim "threads do not change a byte" cmp -s again.gguf qwen3moe.gguf
run reshard plan --format gguf made/qwen3moe/model.gguf
claim "the plan counts its bytes" [ $rc = 0 ]

# ---- dtypes and blocks ----
run reshard --format gguf --dtype bf16 made/llama-f32/model.gguf bf16.gguf
claim "--dtype bf16" [ $rc = 0 ]
run reshard inspect --json bf16.gguf
claim "its matrices are bf16" has "$out" "BF16"
for kind in q8_0 q4_k; do
    run reshard --format gguf --quantize $kind made/llama/model.gguf $kind.gguf
    claim "--quantize $kind" [ $rc = 0 ]
    claim "matrices of other widths are named" has "$err" "matrices are not $kind: their rows are no whole number"
done

# ---- gpt-oss as it is published: codes and scales of experts ----
cat >published.py <<'PY'
import json, os, random, struct
random.seed(4)
H, E, heads, kv, d = 64, 3, 4, 2, 16
tensors = {}
def add(name, kind, *shape):
    n = 2 if kind == "BF16" else 1
    for s in shape:
        n *= s
    tensors["model." + name if name != "lm_head.weight" else name] = (kind, shape, random.randbytes(n))
add("embed_tokens.weight", "BF16", 40, H)
add("lm_head.weight", "BF16", 40, H)
add("norm.weight", "BF16", H)
at = "layers.0."
for name, shape in (
    ("input_layernorm.weight", [H]), ("post_attention_layernorm.weight", [H]), ("self_attn.sinks", [heads]),
    ("self_attn.q_proj.weight", [heads * d, H]), ("self_attn.q_proj.bias", [heads * d]), ("self_attn.k_proj.weight", [kv * d, H]),
    ("self_attn.k_proj.bias", [kv * d]), ("self_attn.v_proj.weight", [kv * d, H]), ("self_attn.v_proj.bias", [kv * d]),
    ("self_attn.o_proj.weight", [H, heads * d]), ("self_attn.o_proj.bias", [H]), ("mlp.router.weight", [E, H]), ("mlp.router.bias", [E])):
    add(at + name, "BF16", *shape)
for name, rows in ("gate_up_proj", 2 * H), ("down_proj", H):
    add(at + "mlp.experts.%s_blocks" % name, "U8", E, rows, H // 32, 16)
    add(at + "mlp.experts.%s_scales" % name, "U8", E, rows, H // 32)
    add(at + "mlp.experts.%s_bias" % name, "BF16", E, rows)
os.mkdir("published")
config = dict(model_type="gpt_oss", hidden_size=H, intermediate_size=H, num_hidden_layers=1, num_attention_heads=heads,
              num_key_value_heads=kv, head_dim=d, vocab_size=40, num_local_experts=E, num_experts_per_tok=2, sliding_window=8,
              layer_types=["sliding_attention"], attention_bias=True, torch_dtype="bfloat16", quantization_config=dict(quant_method="mxfp4"))
json.dump(config, open("published/config.json", "w"))
head, off = {}, 0
for name, (kind, shape, data) in tensors.items():
    head[name] = dict(dtype=kind, shape=shape, data_offsets=[off, off + len(data)])
    off += len(data)
h = json.dumps(head).encode()
with open("published/model.safetensors", "wb") as f:
    f.write(struct.pack("<Q", len(h)) + h + b"".join(t[2] for t in tensors.values()))
PY
python3 -B published.py
run reshard --format gguf published mxfp4.gguf
claim "codes and scales of gpt-oss" [ $rc = 0 ]
run reshard diff published mxfp4.gguf
claim "none of their bits changes" [ $rc = 0 ]
run reshard --format gguf --dequantize bf16 published values.gguf
claim "or their values" [ $rc = 0 ]
run reshard --format hf --dequantize bf16 published values
run reshard --format gguf values values2.gguf
claim "the same as of a folder with those values" cmp -s values.gguf values2.gguf

# ---- a byte model, and a model's optimizer state ----
for i in {1..40}; do echo "line $i"; done >text
run ptrain --data text --model tiny --steps 1 --seq-len 16 --global-batch 1 --threads 1 --out run
run reshard --format gguf run/step-1 tiny.gguf
claim "a run's checkpoint" [ $rc = 0 ]
claim "optimizer state is left out, and that is said" has "$err" "optimizer state is left out"
run grep -c 'tokenizer.ggml.merges' tiny.gguf
claim "a byte model has a tokenizer" [ $rc = 0 ]
run reshard --format gguf --quantize q8_0 run/step-1 tiny8.gguf
claim "in blocks" [ $rc = 0 ]
claim "it is smaller than half" [ $(($(stat -c %s tiny8.gguf) * 2)) -lt "$(stat -c %s tiny.gguf)" ]

# ---- there and back: the tokenizer's file too ----
for model in llama3-tied-bf16-sharded qwen2-bias-tied-f32 mistral-swa-f32; do
    [ -n "${FIXTURES:-}" ] || { skip "FIXTURES is not set"; break; }
    src=$FIXTURES/hf/hf/$model/model
    run reshard --format gguf "$src" $model.gguf && run reshard --format hf $model.gguf $model
    claim "$model: the same tokenizer.json" cmp -s "$src/tokenizer.json" $model/tokenizer.json
    run reshard diff "$src" $model
    claim "$model: the same tensors" [ $rc = 0 ]
done

run reshard --format hf --weights-only run/step-1 odd
python3 - <<'PY'
import json
split = dict(type="Split", pattern=dict(Regex="x+"), behavior="Isolated", invert=False)
level = dict(type="ByteLevel", add_prefix_space=False, trim_offsets=True, use_regex=False)
pre, model = dict(type="Sequence", pretokenizers=[split, level]), dict(type="BPE", vocab={"a": 0, "b": 1, "ab": 2}, merges=["a b"])
added = [dict(id=3, content="<s>", special=True)]
json.dump(dict(added_tokens=added, pre_tokenizer=pre, decoder=level, model=model), open("odd/tokenizer.json", "w"))
json.dump(dict(bos_token="<s>", chat_template="{{ x }}"), open("odd/tokenizer_config.json", "w"))
PY
run reshard --format gguf odd odd.gguf
claim "a tokenizer that llama.cpp has no name for" has "$err" "llama.cpp has nothing like its pre-tokenizer"
run reshard --format hf odd.gguf odd-back
claim "comes back too" cmp -s odd/tokenizer.json odd-back/tokenizer.json
claim "with its special tokens" grep -q '"bos_token":"<s>"' odd-back/tokenizer_config.json
claim "and its template" grep -q '{{ x }}' odd-back/tokenizer_config.json

# ---- what is refused: one line each ----
refuse() { # WHAT WORDS OPTIONS…
    run reshard "${@:3}"
    claim "$1" [ $rc != 0 ]
    claim "$1: in one line that says why" has "$err" "$2"
    claim "$1: one line" [ "$(grep -c . <<<"$err")" = 1 ]
}
cp -r made/llama/hf bare && rm bare/config.json
refuse "no config" "needs a config.json" --format gguf bare a.gguf
mkdir unknown && cp made/llama/hf/model.safetensors unknown && echo '{"model_type":"mamba"}' >unknown/config.json
refuse "a family that nothing knows" mamba --format gguf unknown a.gguf
refuse "ranks" "holds whole tensors" --format gguf --tp 2 run/step-1 a.gguf
refuse "blocks elsewhere" "is for --format gguf" --quantize q4_k --format hf run/step-1 a
claim "nothing was written" [ ! -e a.gguf ]
finish
