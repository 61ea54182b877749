#!/usr/bin/env bash
# quick
# serve_window.sh - a sliding window: pages behind it are released, so that a pool of a few pages holds long sequences, with the trainer's
# bits; see serve_window.py.
. "$(dirname "$0")/../lib/serve_lib.bash"
head -c 2400 "$TMP/text" >"$TMP/held-out"
cat >"$TMP/config.json" <<'EOF2'
{"model_type":"mistral","hidden_size":64,"intermediate_size":128,"num_hidden_layers":3,"num_attention_heads":8,"num_key_value_heads":2,"head_dim":8,
 "vocab_size":256,"max_position_embeddings":2048,"sliding_window":150,"rms_norm_eps":1e-5,"rope_theta":10000.0,"tie_word_embeddings":false}
EOF2
run ptrain --data "$TMP/text" --model "$TMP/config.json" --out "$TMP/run" --steps 3 --seq-len 256 --global-batch 4 --lr 0.01
claim "a model with a window is trained" [ $rc = 0 ] || finish
run ptrain --eval-only --init "$TMP/run/step-3" --eval-data "$TMP/held-out" --seq-len 1100 --eval-logprobs "$TMP/eval.jsonl"
claim "and evaluated" [ $rc = 0 ] || finish
asked serve_window.py "$TMP/run/step-3" "$TMP/eval.jsonl"
run pserve "$TMP/run/step-3" --once x --ctx 2048 --prefill-chunk 64 --kv-memory 80000
claim "a pool that does not hold the window is refused" [ $rc != 0 -a "$(wc -l <"$TMP/.err")" = 1 ]
finish
