#!/usr/bin/env bash
# all
# quant_served.sh - pserve opens folders with quantised weights. Its log-probs are bit for bit those that the
# trainer has of the folder that reshard --dequantize makes of them, at every tp, batch and chunk
# (serve_families.py), and the fingerprint is that folder's.
. "$(dirname "$0")/../lib/serve_lib.bash"
here=$here/../serve
head -c 2500 "$TMP/text" >"$TMP/held-out"
cat >"$TMP/config.json" <<'JSON'
{"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 256, "num_hidden_layers": 2,
 "num_attention_heads": 8, "num_key_value_heads": 4, "intermediate_size": 512, "vocab_size": 256,
 "max_position_embeddings": 2048, "rms_norm_eps": 1e-5, "rope_theta": 10000, "tie_word_embeddings": false}
JSON
trained --model "$TMP/config.json" --dtype bf16 --steps 3 --ranks 2

said() { grep -q "$1" "$TMP/.err"; }

# mark DIR: the fingerprint of a server of DIR
mark() {
    "$python" -B -c 'import sys
from serve_server import Server
s = Server(sys.argv[1])
print(s.complete(prompt=[1], max_tokens=1)["system_fingerprint"])
s.stop()' "$1"
}

# served KIND SERVER...: KIND is one that reshard makes
served() {
    local kind=$1
    shift
    run reshard --format hf --weights-only --quantize "$kind" "$TMP/run/step-3" "$TMP/$kind"
    claim "$kind is written" [ $rc = 0 ] || finish
    run reshard --format hf --dequantize bf16 "$TMP/$kind" "$TMP/$kind-values"
    claim "$kind is dequantised" [ $rc = 0 ] || finish
    run ptrain --eval-only --init "$TMP/$kind-values" --dtype bf16 --eval-data "$TMP/held-out" --seq-len 64 \
        --eval-logprobs "$TMP/$kind.jsonl"
    claim "$kind: the values are evaluated" [ $rc = 0 ] || finish
    WEIGHTS=$(mark "$TMP/$kind-values") what=$kind asked serve_families.py "$TMP/$kind" \
        "$TMP/$kind.jsonl" "$@"
    run pserve "$TMP/$kind" --once line --max-tokens 1 --verbose
    claim "$kind: the log names the class" said \
        'quantised weights (.*) are computed as their values in bf16: class deq'
}
served int8-g128 "--tp 2" "--tp 4" "--tp 8"
served fp8-b128 "--tp 8" "--quantized codes" "--quantized codes --tp 2" "--quantized codes --tp 4" "--quantized codes --tp 8"
served mxfp4 "--tp 4" "--quantized codes" "--quantized codes --tp 8"
run pserve "$TMP/fp8-b128" --quantized codes --once line --max-tokens 1 --verbose
claim "every pack of the layers lies as codes" said 'lie as codes in 8 packs of [0-9]* bytes: class deq'

# integers as they lie: classes of their own
here=$(cd "$(dirname "$0")" && pwd)
for class in grp int; do
    how=$([ $class = grp ] && echo "--quantized codes" || echo "--act int8")
    what=$class asked quant_codes.py "$TMP/int8-g128" "$TMP/int8-g128.jsonl" $class "$how" \
        "$how --tp 2" "$how --tp 4 --max-batch 3" "$how --tp 8"
done
run pserve "$TMP/int8-g128" --quantized codes --dtype fp32 --once x
claim "fp32 has no codes" [ $rc = 2 ]
claim "and the line says so" has "$err" "--quantized codes computes in bf16 on a CPU: add --dtype bf16"
run pserve "$TMP/run/step-3" --act int8 --once x
claim "--act int8 of weights that are not quantised is refused" [ $rc = 2 ]
claim "with the reason" has "$err" "--act int8 is for quantised weights, and"
finish
