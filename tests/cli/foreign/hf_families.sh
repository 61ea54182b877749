#!/usr/bin/env bash
# quick
# hf_families.sh - every family at every layout and back: the bytes of every tensor, compared by a reader that
# is not ours; what does not belong together is named; mutations are found. Needs $FIXTURES.
here=$(cd "$(dirname "$0")" && pwd)
. "$here/../lib/lib.bash"
[ -n "${FIXTURES:-}" ] || { skip "FIXTURES is not set"; finish; }
python=${PYTHON:-python3}
command -v "$python" >/dev/null || { skip "no python3 here"; finish; }
cd "$TMP" || exit 1
models=$FIXTURES/hf/hf

cat >tensors.py <<'PY'
"""compare A B…: equal tensors, byte for byte.  edit A B CODE: a copy of folder A whose dict t of (dtype, shape, bytes) CODE has changed."""
import glob, json, os, struct, sys
def read(folder):
    t = {}
    for f in sorted(glob.glob(folder + "/*.safetensors")):
        b = open(f, "rb").read()
        n = struct.unpack("<Q", b[:8])[0]
        for k, v in json.loads(b[8:8 + n]).items():
            if k != "__metadata__":
                assert k not in t
                lo, hi = v["data_offsets"]
                t[k] = (v["dtype"], v["shape"], b[8 + n + lo:8 + n + hi])
    index = folder + "/model.safetensors.index.json"
    if os.path.exists(index):
        assert set(json.load(open(index))["weight_map"]) == set(t)
    return t
if sys.argv[1] == "compare":
    sys.exit(any(read(sys.argv[2]) != read(b) for b in sys.argv[3:]))
t = read(sys.argv[2])
def swap(a, b, lo=None, hi=None, lo2=None, hi2=None):
    x, y = bytearray(t[a][2]), bytearray(t[b][2])
    lo, hi = lo or 0, hi or len(x)
    lo2, hi2 = lo2 or lo, hi2 or hi
    x[lo:hi], y[lo2:hi2] = t[b][2][lo2:hi2], t[a][2][lo:hi]
    if a == b:
        x[lo2:hi2] = t[a][2][lo:hi]
    t[a] = (*t[a][:2], bytes(x))
    if a != b:
        t[b] = (*t[b][:2], bytes(y))
exec(sys.argv[4])
os.mkdir(sys.argv[3])
at, head, data = 0, {}, b""
for k, (d, s, b) in t.items():
    head[k] = {"dtype": d, "shape": s, "data_offsets": [at, at + len(b)]}
    at, data = at + len(b), data + b
h = json.dumps(head).encode()
open(sys.argv[3] + "/model.safetensors", "wb").write(struct.pack("<Q", len(h)) + h + data)
open(sys.argv[3] + "/config.json", "w").write(open(sys.argv[2] + "/config.json").read())
PY

for dir in "$models"/*/ "$FIXTURES"/experts/hf/*/; do
    m=$(basename "$dir") src=$dir/model
    digest=$("$BIN/reshard" digest "$src")
    chain=$src
    for layout in "--tp 1" "--tp 2" "--tp 4 --pp 2 --dp 2 --zero 3" "--tp 8"; do
        rm -rf n && back=back${layout// /}
        run reshard $layout "$src" n
        claim "$m to $layout" [ $rc = 0 ]
        claim "and it is cut, not carried whole" [ "${err/carried whole/}" = "$err" ]
        claim "$m at $layout: the digest" [ "$("$BIN/reshard" digest n)" = "$digest" ]
        run reshard --format hf --shard-size 400kB n $back
        claim "$m: no file is larger than was asked for" [ -z \
            "$(find $back -name '*.safetensors' -size +430k)" ]
        claim "$m: config.json is the same" cmp -s "$src/config.json" $back/config.json
        claim "$m: the tokenizer is carried" cmp -s "$src/tokenizer.json" $back/tokenizer.json
        rm -rf next && run reshard $layout "$chain" next
        rm -rf link && mv next link && chain=link
    done
    run reshard --format hf link back-chain
    claim "$m by every layout, and through all of them, and back: every tensor's bytes" "$python" tensors.py \
        compare "$src" back-*
    rm -rf back-*
done

# mutation WORDS MODEL CODE: diff names the tensor, the digest is another one
mutation() {
    rm -rf mutated
    "$python" tensors.py edit "$models/$2/model" mutated "$3"
    run reshard diff "$models/$2/model" mutated
    claim "$1: diff" [ $rc = 1 ]
    claim "$1: names $4" has "$out" "$4"
    claim "$1: the digest" [ "$("$BIN/reshard" digest mutated)" != \
        "$("$BIN/reshard" digest "$models/$2/model")" ]
}
x=model.layers.1.block_sparse_moe.experts
mutation "two experts swapped" mixtral-f32-sharded \
    "[swap('$x.2.%s.weight' % w, '$x.5.%s.weight' % w) for w in ('w1', 'w2', 'w3')]" "$x.5.w2.weight"
mutation "gate and up of an expert swapped" mixtral-f32-sharded "swap('$x.2.w1.weight', '$x.2.w3.weight')" \
    "$x.2.w3.weight"
q=gpt_neox.layers.1.attention.query_key_value.weight
mutation "q and k of a head swapped" neox-f32 "swap('$q', '$q', 0, 16 * 512, 16 * 512, 32 * 512)" "$q"
mutation "two heads swapped" neox-f32 "swap('$q', '$q', 0, 48 * 512, 48 * 512, 96 * 512)" "$q"
mutation "the two norms behind a block swapped" gemma2-f32 \
    "swap('model.layers.2.post_attention_layernorm.weight', 'model.layers.2.post_feedforward_layernorm.weight')" model.layers.2.post_feedforward_layernorm.weight
mutation "rows of the router shifted" qwen3moe-f32 \
    "k = 'model.layers.2.mlp.gate.weight'; d, s, b = t[k]; t[k] = (d, s, b[256:] + b[:256])" \
        model.layers.2.mlp.gate.weight

# refused WORDS MODEL|FOLDER CODE MESSAGE...
refused() {
    local what=$1 m=$2 code=$3
    shift 3
    rm -rf edited
    [ -d "$m" ] || m=$models/$m/model
    "$python" tensors.py edit "$m" edited "$code"
    run reshard --tp 2 edited x
    claim "$what is refused in one line" [ "$rc/$(wc -l <<<"$err")" = 2/1 ]
    for words; do claim "$what: says $words" has "$err" "$words"; done
    claim "$what: nothing appears" [ ! -e x ]
}
refused "a missing expert" mixtral-f32-sharded "del t['$x.7.w2.weight']" "has no $x.7.w2.weight"
refused "a missing router" mixtral-f32-sharded "del t['model.layers.1.block_sparse_moe.gate.weight']" \
    "has no model.layers.1.block_sparse_moe.gate.weight"
refused "one expert too many" mixtral-f32-sharded "t['$x.8.w2.weight'] = t['$x.7.w2.weight']" \
    "$x.8.w2.weight is not a tensor of the mixtral model"
refused "a missing norm" gemma3-f32 "del t['model.layers.3.self_attn.q_norm.weight']" \
    "has no model.layers.3.self_attn.q_norm.weight"
refused "experts in a dense layer" qwen3moe-f32 \
    "t['model.layers.1.mlp.gate.weight'] = t['model.layers.0.mlp.gate.weight']" \
        "model.layers.1.mlp.gate.weight is not"
refused "another shape" neox-f32 "k = '$q'; d, s, b = t[k]; t[k] = (d, [s[1], s[0]], b)" "$q is [128,384]" \
    "says [384,128]"
gpt=$FIXTURES/experts/hf/gptoss-f32/model deepseek=$FIXTURES/experts/hf/deepseek3-f32/model
refused "a bias without its router" "$gpt" "del t['model.layers.1.mlp.router.weight']" \
    "has no model.layers.1.mlp.router.weight"
refused "a router without its bias" "$gpt" "del t['model.layers.1.mlp.router.bias']" \
    "has no model.layers.1.mlp.router.bias"
refused "a correction bias without its router" "$deepseek" "del t['model.layers.1.mlp.gate.weight']" \
    "has no model.layers.1.mlp.gate.weight"
refused "experts' biases of another number" "$gpt" \
    "k = 'model.layers.0.mlp.experts.down_proj_bias'; d, s, b = t[k]; t[k] = (d, [s[0] - 1, s[1]], b[:(s[0] - 1) * s[1] * 4])" \
    model.layers.0.mlp.experts.down_proj_bias

# gpt-oss holds its experts [in][out]. Of a file that has them [out][in], one of the two matrices tells, also
# where the dims of the other agree.
# hidden 24: i = h, h = 2i, another
for n in 24 12 48; do
    echo "{\"model_type\":\"gpt_oss\",\"hidden_size\":24,\"intermediate_size\":$n,\"num_hidden_layers\":1,\"num_attention_heads\":2,\"num_key_value_heads\":2,\"head_dim\":8,\"num_local_experts\":3,\"num_experts_per_tok\":2,\"vocab_size\":256,\"max_position_embeddings\":64}" >oss.json
    yes "a line of text" | head -n 50 >oss.txt
    rm -rf oss oss-hf
    run ptrain --data oss.txt --model oss.json --steps 1 --lr 0 --seq-len 8 --global-batch 1 --out oss \
        --threads 1
    run reshard --format hf oss/step-1 oss-hf
    claim "a gpt-oss of width $n is made" [ $rc = 0 ]
    refused "every expert transposed, width $n" oss-hf \
        "t.update({k: (d, [s[0], s[2], s[1]], b) for k, (d, s, b) in t.items() if k.endswith(('gate_up_proj', 'down_proj'))})" \
        "model.layers.0.mlp.experts.$([ $n = 24 ] && echo gate_up_proj || echo down_proj) is [3,"
done
finish
