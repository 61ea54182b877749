#!/usr/bin/env bash
# quick
# serve_window.sh - a sliding window, in all layers or in some: their pages behind it are released, so that a
# pool of a few pages holds long sequences, with the trainer's bits; see serve_window.py.
. "$(dirname "$0")/../lib/serve_lib.bash"
head -c 2400 "$TMP/text" >"$TMP/held-out"
sizes='"hidden_size":64,"intermediate_size":128,"num_hidden_layers":3,"num_attention_heads":8,"num_key_value_heads":2,"head_dim":8,"vocab_size":256,
"max_position_embeddings":2048,"sliding_window":150,"rms_norm_eps":1e-5,"rope_theta":10000.0,"tie_word_embeddings":false'

# window_bits NAME WHOLE CONFIG BYTES: a model with so many layers without a window, and a pool that is too
# small; trained, evaluated, and served from small pools
window_bits() {
    what=$1
    echo "{$3,$sizes}" >"$TMP/config.json"
    rm -rf "$TMP/run"
    run ptrain --data "$TMP/text" --model "$TMP/config.json" --out "$TMP/run" --steps 3 --seq-len 256 \
        --global-batch 4 --lr 0.01
    claim "$what: a model with a window is trained" [ $rc = 0 ] || finish
    run ptrain --eval-only --init "$TMP/run/step-3" --eval-data "$TMP/held-out" --seq-len 1100 \
        --eval-logprobs "$TMP/eval.jsonl"
    claim "$what: and evaluated" [ $rc = 0 ] || finish
    asked serve_window.py "$TMP/run/step-3" "$TMP/eval.jsonl" "$2"
    run pserve "$TMP/run/step-3" --once x --ctx 2048 --prefill-chunk 64 --kv-memory "$4"
    claim "$what: a pool that does not hold the window is refused" [ $rc != 0 -a "$(wc -l <"$TMP/.err")" = 1 ]
}

window_bits "all layers" 0 '"model_type":"mistral"' 80000
window_bits "two of three layers" 1 '"model_type":"qwen2","use_sliding_window":true,"max_window_layers":1' \
    340000
run pserve "$TMP/run/step-3" --once x --ctx 2048 --prefill-chunk 64 --kv-memory 345000
claim "a pool that holds 32 pages of one layer and 5 of two holds a sequence" [ $rc = 0 ]
finish
