#!/usr/bin/env bash
# quick sanitize
# reshard_adapter.sh - LoRA adapters of PEFT: read, cut with their model and joined to the same bytes, merged by
# one rule with the same bits at every layout. peft_adapter/ was saved by PEFT 0.21 for the model of
# reshard_make.py; its digests are those that adapter_peers.py has checked.
here=$(cd "$(dirname "$0")" && pwd)
. "$here/../lib/lib.bash"
cd "$TMP" || exit 1
command -v python3 >/dev/null || { skip "no python3 here"; finish; }
adapter() { python3 -B "$here/../lib/adapter_make.py" "$@"; }
digest() { run reshard digest "$1" && echo "${out%%$'\n'*}"; }

python3 "$here/../lib/reshard_make.py" hf
run reshard --format hf --dtype bf16 hf half
adapter make b r=4 use_rslora=true dtype='"BF16"' -- zero lora_alpha=0 -- a 'names=["q_proj","k_proj","v_proj","o_proj","gate_proj","up_proj","down_proj"]' \
    'rank_pattern={"k_proj":5,"layers\\.1\\.mlp\\.up_proj":2}' 'alpha_pattern={"o_proj":3}'
for model in hf half; do adapter want $model a "want.$model"; done
adapter want want.hf b want.two

# PEFT's own files
run reshard inspect "$here/peft_adapter"
claim "inspect describes an adapter" has "$out" "LoRA of rank 2, alpha 16 (rslora): 3 modules, 5 whole tensors"
claim "its digest" [ "$(digest "$here/peft_adapter")" = "weights_digest c248646f76a268219a4adc2d68cf849b" ]
run reshard verify "$here/peft_adapter"
claim "verify reads it" [ $rc = 0 ]
run reshard --merge "$here/peft_adapter" hf recorded
claim "and it is merged" [ $rc/"$(digest recorded)" = "0/weights_digest b5bfcd22f668dfd29f5d270d08bf89f3" ]

# cut and joined
for layout in "--tp 4 --dp 2 --zero 3" "--tp 8 --pp 2"; do
    run reshard $layout --config hf/config.json a cut
    claim "an adapter is cut ($layout)" [ $rc = 0 ]
    run reshard --format hf cut joined
    claim "and joined to the same bytes" diff -r a joined
    run reshard --merge cut --tp 2 hf merged
    claim "cut, it merges as it did whole" [ "$(digest merged)" = "$(digest want.hf)" ]
    rm -rf cut joined merged
done
run reshard --tp 2 --config hf/config.json a cut
python3 - <<'PY'
import json, struct
def shapes(path):
    with open(path, "rb") as f:
        return {k: v["shape"] for k, v in json.loads(f.read(struct.unpack("<Q", f.read(8))[0])).items() if k[0] != "_"}
at = "base_model.model.model.layers.0."
for rank in 0, 1:
    s = shapes("cut/weights-%05d.safetensors" % rank)
    assert s[at + "self_attn.q_proj.lora_B.weight"] == [16, 3], s
    assert s[at + "self_attn.o_proj.lora_A.weight"] == [3, 16], s
    assert s[at + "mlp.down_proj.lora_A.weight"] == [3, 20], s
    assert s[at + "mlp.up_proj.lora_B.weight"] == [20, 3], s
    assert (at + "self_attn.q_proj.lora_A.weight" in s) == (rank == 0), s
    assert (at + "self_attn.o_proj.lora_B.weight" in s) == (rank == 0), s
PY
rc=$?
claim "B's rows of a column-parallel weight, A's columns of a row-parallel one, the rest once" [ $rc = 0 ]
run reshard --tp 4 cut cut4
claim "the layout of the adapter changes without its model" [ "$rc/$(digest cut4)" = "0/$(digest a)" ]
cat >moe.json <<'JSON'
{"model_type": "qwen3_moe", "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 8, "num_key_value_heads": 2,
 "intermediate_size": 40, "moe_intermediate_size": 40, "num_experts": 4, "num_experts_per_tok": 2, "vocab_size": 256,
 "head_dim": 4, "tie_word_embeddings": false}
JSON
adapter make moe 'names=["q_proj","experts.0.up_proj","experts.1.down_proj","experts.2.down_proj","experts.3.up_proj"]'
run reshard --tp 2 --ep 2 --pp 2 --config moe.json moe ep
claim "factors of single experts go with their experts" [ $rc = 0 ]
claim "the first ep rank has those of its experts" [ "$(grep -ao 'experts.[0-9].[a-z]*_proj.lora_[AB]' \
    ep/weights-00000.safetensors | sort -u | tr '\n' ' ')" = \
    "experts.0.up_proj.lora_A experts.0.up_proj.lora_B experts.1.down_proj.lora_A experts.1.down_proj.lora_B " ]
run reshard --format hf ep joined
claim "and are joined to the same bytes" diff -r moe joined
# what PEFT writes for target_modules that transformers 5 holds in one tensor: names without a module
python3 - <<'PY'
import json, os, struct
at = "base_model.model.model.layers.0.mlp."
shapes = {"experts.base_layer.lora_A": [16, 32], "experts.base_layer.lora_B": [80, 16],
          "experts.lora_A": [8, 40], "experts.lora_B": [32, 8], "gate.lora_A": [2, 32], "gate.lora_B": [4, 2]}
header, end = {}, 0
for name, (rows, columns) in shapes.items():
    header[at + name + ".weight"] = {"dtype": "F32", "shape": [rows, columns], "data_offsets": [end, end + 4 * rows * columns]}
    end += 4 * rows * columns
os.mkdir("fused")
text = json.dumps(header).encode()
with open("fused/adapter_model.safetensors", "wb") as f:
    f.write(struct.pack("<Q", len(text)) + text + struct.pack("<%df" % (end // 4), *[i + 1 for i in range(end // 4)]))
with open("fused/adapter_config.json", "w") as f:
    json.dump({"peft_type": "LORA", "peft_version": "0.21.2", "r": 2, "lora_alpha": 2, "target_modules": ["q_proj"],
               "rank_pattern": {".*\\.gate_up_proj": 4}, "target_parameters": ["down_proj", "gate.weight", "gate_up_proj"]}, f)
PY
run reshard verify fused
claim "parameters of experts are found by their names alone" [ $rc = 0 ]
run reshard --tp 2 a refused
claim "without the model's config nothing is cut" [ $rc = 2 ]
claim "and the remedy is named" has "$err" "--config FILE"

# one rule, the same bits everywhere
run reshard --tp 2 --pp 2 hf cut2
while read -r model layout; do
    run reshard $layout --merge a $model merged
    claim "merged ($model, $layout)" [ "$rc/$(digest merged)" = "0/$(digest want.hf)" ]
    rm -rf merged
done <<'TABLE'
hf --threads 3 --tp 8
hf --format hf
hf --ranks 2 --tp 2
cut2 --threads 1
cut2 --tp 2 --pp 2 --dp 2 --zero 3
TABLE
run reshard --merge a half merged16
claim "bf16 weights are rounded once" [ "$rc/$(digest merged16)" = "0/$(digest want.half)" ]
run reshard --merge a --merge b hf two
claim "two adapters are merged one after the other" [ "$rc/$(digest two)" = "0/$(digest want.two)" ]
run reshard inspect two
claim "inspect lists what was merged" [ "$(grep ^merged <<<"$out")" = \
    "merged       adapter of $(digest a)
merged       adapter of $(digest b)" ]
run reshard --merge a hf one
run reshard --merge b --format hf one two.hf
claim "as two runs are" [ "$rc/$(digest two.hf)" = "0/$(digest want.two)" ]
claim "which record both" [ "$(grep -c digest two.hf/merged_adapters.json)" = 2 ]
run reshard --quantize mxfp4 hf codes
run reshard --dequantize bf16 codes flat
run reshard --merge a flat m1
run reshard --dequantize bf16 --merge a codes m2
claim "values of codes are merged into" [ "$rc/$(digest m2)" = "0/$(digest m1)" ]
claim "codes of merged weights are not given back" [ ! -e m2/quantized.json ]
run reshard --merge a --quantize mxfp4 hf q1
run reshard --quantize mxfp4 one q2
claim "codes are made of the merged weights" [ "$rc/$(digest q2)" = "0/$(digest q1)" ]
run reshard plan --merge a --tp 2 hf
claim "plan takes --merge" [ $rc = 0 ]
file_server "$TMP" "$TMP/.log"
run reshard --merge "http://127.0.0.1:$port/ok/a" hf url
claim "an adapter is merged by URL" [ "$rc/$(digest url)" = "0/$(digest want.hf)" ]
run reshard --merge zero hf same
claim "an adapter of scale 0 changes nothing" [ "$rc/$(digest same)" = "0/$(digest hf)" ]

# refused: case, words of adapter_make.py, what the message says
table=$(cat <<'TABLE'
a missing B|drop='"lora_B"'|model.layers.0.mlp.down_proj has no lora_B
a missing A|drop='"q_proj.lora_A"'|model.layers.0.self_attn.q_proj has no lora_A
another rank|after='{"r":4}'|A with 2 dims [3,40] and B [32,3], its rank in adapter_config.json is 4
a rank that is no number|after='{"rank_pattern":{"q_proj":"3"}}'|rank_pattern gives no number for q_proj
half a rank|after='{"rank_pattern":{"q_proj":2.5}}'|has rank 2.5
a huge rank|after='{"r":9000000000}'|has rank 9e+09
an alpha that is no number|after='{"lora_alpha":NaN}'|adapter_config.json
an unknown pattern|after='{"rank_pattern":{"(?=q)q_proj":3}}'|the pattern "(?=q)q_proj" is not understood
a weight the model lacks|names='["q_proj"]' rename='"layers.1.self_attn.q_proj.lora_A:layers.1.self_attn.x_proj.lora_A"'|has no lora_
another width|names='["q_proj"]' widen='"q_proj.lora_B"'|is [33,3], model.layers.0.self_attn.q_proj.weight of the model is [32,32]
a foreign tensor|rename='"q_proj.lora_A.weight:q_proj.lora_magnitude_vector"'|is no tensor of plain LoRA
a name that is a path|rename='"model.layers.0.self_attn.q_proj.lora_A:../../etc.lora_A"'|has no lora_
a whole tensor the model lacks|rename='"q_proj.lora_A.weight:q_proj.weight"' rename='"q_proj.lora_A.weight:score.weight"'|has no lora_A
a NaN|nan='"q_proj.lora_B"'|values that are not finite
DoRA|use_dora=true|use_dora is set: only plain LoRA is known
a bias of B|lora_bias=true|lora_bias is set
another kind|peft_type='"IA3"'|peft_type is IA3: only LORA is known
a changed base|init_lora_weights='"pissa_niter_4"'|init_lora_weights is pissa_niter_4, so it belongs to a changed base model
TABLE
)
words=() n=0
while IFS='|' read -r _ how _; do
    eval "words+=(bad$((n += 1)) $how --)"
done <<<"$table"
adapter make "${words[@]}"
n=0
while IFS='|' read -r what _ message; do
    run reshard --merge bad$((n += 1)) hf refused
    claim "$what is refused" [ $rc != 0 ]
    claim "$what: the reason is one line" [ "$(grep -vc "merged into" <<<"$err")" = 1 ]
    claim "$what: the reason" has "$err" "$message"
    claim "$what: nothing appears" [ ! -e refused ]
done <<<"$table"
run reshard --merge hf hf refused
claim "a model is no adapter" has "$err" "hf: has no adapter_config.json: --merge takes the folder of an adapter"
run reshard --merge a a refused
claim "an adapter is no model" has "$err" "a: is an adapter: --merge merges into a model"
run reshard --format gguf a refused.gguf
claim "nor is it written as one" has "$err" "merge it into its model first (--merge)"
run reshard --merge a codes refused
claim "codes are not merged into" has "$err" "give --dequantize bf16"
echo 'not json' >a/adapter_config.json
run reshard verify a
claim "verify looks at the config" [ $rc = 1 ]
claim "and says what is wrong" has "$err" "adapter_config.json"
head -c 100 cut/weights-00000.safetensors >a/adapter_model.safetensors
run reshard inspect a
claim "a truncated file is refused" [ $rc = 1 ]
finish
