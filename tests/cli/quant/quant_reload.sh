#!/usr/bin/env bash
# quick
# quant_reload.sh - a server of quantised weights that lie as codes takes other weights: see quant_reload.py.
. "$(dirname "$0")/../lib/serve_lib.bash"
cat >"$TMP/config.json" <<'JSON'
{"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 256, "num_hidden_layers": 2,
 "num_attention_heads": 8, "num_key_value_heads": 4, "intermediate_size": 512, "vocab_size": 256,
 "max_position_embeddings": 2048, "rms_norm_eps": 1e-5, "rope_theta": 10000, "tie_word_embeddings": false}
JSON
trained --model "$TMP/config.json" --dtype bf16 --steps 2 --save-every 1
for n in 1 2; do
    run reshard --format hf --weights-only --quantize int8-g128 "$TMP/run/step-$n" "$TMP/codes-$n"
    claim "the codes of step $n are written" [ $rc = 0 ] || finish
done
printf 'admin-key\n' >"$TMP/admin-keys"
asked quant_reload.py "$TMP/codes-1" "$TMP/codes-2" "$TMP/run/step-2" "$TMP/admin-keys"
finish
