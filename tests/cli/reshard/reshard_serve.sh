#!/usr/bin/env bash
# quick
# reshard_serve.sh - weights in panels (--format serve): several families there and back, the second reader,
# training from it, URLs, damage, what is refused.
here=$(cd "$(dirname "$0")" && pwd)
. "$here/../lib/lib.bash"
command -v python3 >/dev/null || { skip "no python3 here"; finish; }
cd "$TMP" || exit 1

for name in llama-3.2-1b gpt2 gpt-oss-20b deepseek-v3; do
    python3 -B "$here/published.py" make $name src
    run reshard digest src
    digest=$out
    run reshard --format serve src serve
    claim "$name goes into panels" [ $rc = 0 ]
    run reshard verify serve
    claim "$name verifies" has "$out" "every checksum and digest is right"
    run python3 -B "$here/../../native_reader.py" serve
    claim "$name: a reader made from FORMAT.md finds the same digests" [ "$out" = "$digest" ]
    run reshard --format hf src first
    run reshard serve native
    run reshard --format hf native last
    claim "$name comes back to the first bytes" diff -r first last
    run reshard diff src serve
    claim "$name: no tensor differs" [ "$rc$out" = 0 ]
    [ $name = deepseek-v3 ] && cp serve/manifest.json mtp.json
    rm -rf src serve native first last
done
claim "layers for further tokens have packs" python3 -c "
import json
m = json.load(open('mtp.json'))
f = m['files'][0]
joined = [i for i, t in enumerate(m['tensors']) if t['name'].endswith('eh_proj.weight')]
assert joined and all('pack' in p for p in f['pieces'] if p['tensor'] in joined)
assert any(p['tensor'] in joined for p in f['pieces'])"

# ---- a byte model, which ptrain reads ----
python3 "$here/../lib/reshard_make.py" hf
seq -s ' ' 400 >text
run reshard digest hf
digest=$out
run reshard --tp 4 --pp 2 --zero 3 --dp 2 hf shards
run reshard --format serve shards serve
claim "shards of ranks are sources" [ $rc = 0 ]
run reshard --format serve hf again
claim "the layout of the source changes no byte" diff -r serve again
run reshard digest serve
claim "the digest stays" [ "$out" = "$digest" ]
claim "older programs refuse it by name" grep -q '"must_understand":\["panels"\]' serve/manifest.json
run ptrain --eval-only --init hf --eval-data text --seq-len 64
want=$out
run ptrain --eval-only --init serve --eval-data text --seq-len 64 --ranks 2 --tp 2
claim "ptrain takes it: the same loss" [ "$(grep -o '"loss_bits":"[^"]*"' <<<"$out")" = "$(grep -o '"loss_bits":"[^"]*"' <<<"$want")" ]
run ptrain --data text --init serve --out run --steps 1 --seq-len 16 --global-batch 2 --lr 1e-3
claim "and trains it" [ $rc = 0 ]
run reshard --format serve run/step-1 trained
claim "a training checkpoint goes in without its optimizer state" has "$err" "optimizer state is left out: the serve format has weights only"
run reshard digest run/step-1
weights=${out%%$'\n'*}
run reshard digest trained
claim "with its weights" [ "${out%%$'\n'*}" = "$weights" ]
run reshard --format serve --dtype bf16 hf bf16
run reshard --dtype bf16 hf bf16-native
run reshard digest bf16-native
digest=$out
run reshard digest bf16
claim "bf16 panels" [ "$out" = "$digest" ]
run reshard --format serve --quantize b12 bf16-native b12
claim "12 bits are counted" has "$err" "packs in 12 bits with"
run reshard digest b12
claim "and lossless" [ "$out" = "$digest" ]
run python3 -B "$here/../../native_reader.py" b12
claim "for the second reader too" [ "$out" = "$digest" ]
run reshard --format serve --quantize b12 hf x
claim "12 bits of fp32 are refused" has "$err" "--quantize b12 holds bf16"
run reshard --format serve --quantize q8_0 hf x
claim "what GGUF holds, too" has "$err" "--quantize q8_0 is not for --format serve: it has b12"
run reshard inspect serve
claim "inspect counts its packs" has "$out" "packs        9 plain ("
run reshard inspect --json b12
claim "as JSON, too" has "$out" '"packs":{"b12":{"packs":9,"bytes":'
run reshard plan --format serve --quantize b12 bf16-native
claim "a plan reads no data" [ $rc = 0 ]

# ---- memory: a part of the file ----
python3 - <<'MAKE'
import json, os, struct
hidden, inter, layers = 512, 1536, 12
shapes = {"model.norm": [hidden], "model.embed_tokens": [256, hidden], "lm_head": [256, hidden]}
for i in range(layers):
    for x in "qkvo":
        shapes["model.layers.%d.self_attn.%s_proj" % (i, x)] = [hidden, hidden]
    for x, s in (("gate", [inter, hidden]), ("up", [inter, hidden]), ("down", [hidden, inter])):
        shapes["model.layers.%d.mlp.%s_proj" % (i, x)] = s
    for x in ("input", "post_attention"):
        shapes["model.layers.%d.%s_layernorm" % (i, x)] = [hidden]
os.mkdir("large")
at, head = 0, {}
for name, s in shapes.items():
    n = 4 * s[0] * (s + [1])[1]
    head[name + ".weight"] = {"dtype": "F32", "shape": s, "data_offsets": [at, at + n]}
    at += n
text = json.dumps(head).encode()
with open("large/model.safetensors", "wb") as f:
    f.write(struct.pack("<Q", len(text)) + text + os.urandom(at))
with open("large/config.json", "w") as f:
    json.dump({"model_type": "llama", "hidden_size": hidden, "intermediate_size": inter, "num_hidden_layers": layers,
               "num_attention_heads": 8, "num_key_value_heads": 8, "vocab_size": 256,
               "tie_word_embeddings": False, "max_position_embeddings": 64}, f)
MAKE
took=$(python3 -c "
import resource, subprocess
subprocess.run(['$BIN/reshard', '--threads', '1', '--format', 'serve', 'large', 'large-serve'], check=True,
               stderr=subprocess.DEVNULL)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024)")
bytes=$(stat -c %s large-serve/weights-00000.safetensors)
claim "memory ($took) is less than half of the file ($bytes)" [ $((2 * took)) -lt "$bytes" ]
rm -rf large large-serve

# ---- by URL ----
mkdir root && cp -r serve root/
file_server root /dev/null
export SHARDLINE_CACHE=$TMP/cache
run reshard verify "http://127.0.0.1:$port/ok/serve"
claim "verifies by URL" [ $rc = 0 ]
run reshard --tp 2 "http://127.0.0.1:$port/ok/serve" from-url
run reshard --tp 2 hf direct
rm -f from-url/manifest.json direct/manifest.json
claim "is read by URL" cmp from-url/weights-00001.safetensors direct/weights-00001.safetensors

# ---- damage ----
file=weights-00000.safetensors
size=$(stat -c %s serve/$file)
for at in 20 5000 $((size / 2)) $((size - 9)); do
    rm -rf bad && cp -r serve bad
    python3 -c "f = open('bad/$file', 'r+b'); f.seek($at); b = f.read(1); f.seek($at); f.write(bytes([b[0] ^ 4]))"
    run reshard verify bad
    claim "a changed bit at $at is found" [ "$rc/$(wc -l <<<"$err")" = 1/1 ]
    claim "and named" has "$err" "bad/$file: "
    run reshard bad x
    claim "and not copied" [ $rc = 1 -a ! -e x ]
done
rm -rf bad && cp -r serve bad && truncate -s -1 bad/$file
run reshard verify bad
claim "a cut file is refused" has "$err" "restore it from a good copy"

# ---- what is refused ----
run reshard --format serve --tp 2 hf x
claim "tp is the server's" has "$err" "--format serve holds whole tensors: leave --tp"
run reshard --format serve hf serve
claim "an existing target" [ $rc != 0 ]
python3 -B "$here/published.py" make bloom-7b1 src
run reshard --format serve src x
claim "a model that is not known" has "$err" "--format serve"
rm -rf src && python3 -B "$here/published.py" make llama-3.1-8b-w4a16 src
run reshard --format serve src x
claim "quantised weights" has "$err" "add --dequantize bf16"
run reshard --format serve --dequantize bf16 src deq
claim "what they stand for" [ $rc = 0 ]
claim "nothing else appeared" [ ! -e x ]
finish
