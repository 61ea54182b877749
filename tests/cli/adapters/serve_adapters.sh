#!/usr/bin/env bash
# quick
# serve_adapters.sh - adapters (LoRA) in pserve: see serve_adapters.py. SERVE_ADAPTERS=all: more layouts.
. "$(dirname "$0")/../lib/serve_lib.bash"
cd "$TMP" || exit 1
adapter() { "$python" -B "$here/../lib/adapter_of.py" "$@"; }

trained --steps 2 ${SERVE_TRAINING:-}
run reshard --format hf run/step-2 hf
claim "and becomes a Hugging Face folder" [ $rc = 0 ] || finish
adapter hf a 1
adapter hf b 2 r=7 lora_alpha=5 use_rslora=true 'names=["q_proj","down_proj","k_proj"]' \
    'rank_pattern={"k_proj":3}' 'dtype="BF16"'
adapter hf c 1 lora_alpha=9
adapter hf wide 1 r=65 'names=["q_proj"]'
adapter hf far 1 'names=["q_proj"]' && sed -i 's/layers\.4\.self/layers.7.self/g' far/adapter_model.safetensors
adapter hf nan 1 'names=["up_proj"]'
adapter hf big 1 'names=["up_proj"]'
"$python" - <<'END'
import json, struct
def edit(path, name, change):
    data = bytearray(open(path, "rb").read())
    n = struct.unpack("<Q", data[:8])[0]
    head = json.loads(data[8:8 + n])
    change(head[name], data, 8 + n)
    text = json.dumps(head, separators=(",", ":")).encode()
    open(path, "wb").write(data[:8] + text + b" " * (n - len(text)) + data[8 + n:])
for name, value in ("nan", float("nan")), ("big", 3.4e38):
    edit(name + "/adapter_model.safetensors", "base_model.model.model.layers.1.mlp.up_proj.lora_B.weight",
         lambda t, data, at: struct.pack_into("<f", data, at + t["data_offsets"][0] + 4, value))
END
adapter hf wrong 1 'names=["q_proj"]'
sed -i 's/self_attn\.q_proj/self_attn.k_proj/g' wrong/adapter_model.safetensors
run reshard --format hf --merge a hf merged
claim "an adapter is merged" [ $rc = 0 ]
run ptrain --data text --init run/step-2 --lora r=4,alpha=8,targets=all-linear,init=gaussian --out lora --steps 3 \
    --lr 1e-2 --seq-len 64 --global-batch 4 ${SERVE_TRAINING:-}
claim "an adapter is trained" [ $rc = 0 ]
head -c 1200 text >held-out
run ptrain --eval-only --init run/step-2 --lora-init lora/step-3 --eval-data held-out --seq-len 129 --tp 2 \
    --eval-logprobs eval.jsonl ${SERVE_TRAINING:-}
claim "and evaluated" [ $rc = 0 ]
mv lora/step-3 trained
echo admin-key >admin-keys
asked serve_adapters.py "$TMP" "${SERVE_ADAPTERS:-quick}"

run pserve hf --lora a
claim "--lora needs a name" [ $rc = 2 -a "$(wc -l <"$TMP/.err")" = 1 ]
for word in a=none:'cannot open' a=wrong:'of the model is' a=nan:'not finite' hf=a:'the model itself' \
    m=hf:adapter_config.json; do
    run pserve hf --lora "${word%%:*}" --once x
    claim "--lora ${word%%:*} is one line" [ $rc != 0 -a "$(wc -l <"$TMP/.err")" = 1 ]
    claim "that says why" has "$err" "${word#*:}"
done
run pserve hf --lora a=big --dtype bf16 --once x
claim "a value beyond bf16 is one line" [ $rc != 0 -a "$(wc -l <"$TMP/.err")" = 1 ]
claim "that says so" has "$err" "a value that bf16 does not hold"
run pserve hf --lora a=big --dtype fp32 --once x --max-tokens 1
claim "fp32 holds it" has "$err" "adapter a=big:"
run pserve hf --lora a=a --lora a=b --once x
claim "a name is there once" [ $rc = 2 ]
run pserve hf --lora a=a --once "line 7" --max-tokens 8
alone=$out
run pserve merged --once "line 7" --max-tokens 8
claim "--once completes with the adapter" [ "$alone" = "$out" ]
finish
