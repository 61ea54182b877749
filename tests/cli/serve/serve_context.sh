#!/usr/bin/env bash
# quick
# serve_context.sh - the rows of a step divided among ranks (pserve --cp), layers among stages (--pp): the bits
# of one rank, pages held once; see serve_context.py. SERVE_CONTEXT=all (serve_context_all.sh): more layouts,
# chunks and models.
. "$(dirname "$0")/../lib/serve_lib.bash"
every=${SERVE_CONTEXT:-}
sizes='"hidden_size":64,"intermediate_size":128,"num_hidden_layers":3,"num_attention_heads":8,"num_key_value_heads":2,"head_dim":8,"vocab_size":256,
"max_position_embeddings":2048,"rms_norm_eps":1e-5,"rope_theta":10000.0,"tie_word_embeddings":false'

# contexts NAME SERVER...: serves the model of $TMP/run; the first server has one rank
contexts() {
    what=$1
    asked serve_context.py "$TMP/run/step-2" "${@:2}"
    rm -rf "$TMP/run"
}

trained --steps 2 --dtype fp32
run pserve "$TMP/run/step-2" --pp 9 --once x
claim "more stages than layers are refused" [ $rc = 2 -a "$(wc -l <"$TMP/.err")" = 1 ]
run timeout -k 1 60 "$BIN/pserve" "$TMP/run/step-2" --cp 2 --pp 3 --ranks-per-node 3 --once x
claim "stages that machines divide differently are refused" [ $rc = 2 -a "$(sort -u <"$TMP/.err" | wc -l)" = 1 ]
# what --device cuda opens; its ranks have memory of their own
export SHARDLINE_DEVICE=$BIN/../tests/devices/fake_device.so
gpu="--device cuda --kv-memory 40MB"
few="--ctx 512 --max-batch 4 --kv-memory 1400kB few"
contexts fp32 "--cp 1" "--tp 2 --cp 2 --prefill-chunk 200" "--cp 2 $few" "--pp 2 --cp 2 --prefill-chunk 200" \
    "--cp 2 $gpu --prefill-chunk 200" \
    ${every:+"--cp 2" "--tp 2 --cp 2 --max-batch 3" "--cp 4" "--cp 8 --prefill-chunk 64"
        "--cp 3 --tp 2 --prefill-chunk 333" "--cp 2 --threads 2" "--cp 2 --prefix-cache off --prefill-chunk 1"
        "--tp 4 --cp 2 --prefill-chunk 1000" "--cp 2 --replicas 2" "--pp 2" "--pp 4 --prefill-chunk 50"
        "--pp 3 --prefix-cache off --prefill-chunk 7" "--pp 2 --tp 2 $few" "--pp 2 --tp 2 --cp 2 --threads 2"
        "--pp 2 --replicas 2" "--pp 2 --ranks-per-node 1" "--cp 2 --ranks-per-node 1"
        "--cp 4 --ranks-per-node 2 --prefill-chunk 200" "--cp 4 --pp 2 --ranks-per-node 2"
        "--cp 3 $gpu --max-batch 3" "--pp 2 --cp 2 $gpu"}
[ "$every" = all ] || finish

echo "{\"model_type\":\"qwen2\",\"use_sliding_window\":true,\"sliding_window\":150,\"max_window_layers\":1,$sizes}" \
    >"$TMP/config.json"
trained --steps 2 --model "$TMP/config.json" --dtype bf16
contexts "windows in some layers" "--cp 1" "--cp 2 --prefill-chunk 300" "--cp 4 --tp 2" \
    "--cp 2 --prefill-chunk 64" "--cp 8 --prefill-chunk 640" "--pp 3" "--pp 2 --cp 2 --prefill-chunk 300" \
    "--cp 2 --ranks-per-node 1 --prefill-chunk 300"
trained --steps 2 --model tiny-moe --dtype fp32
contexts experts "--cp 1" "--cp 2 --tp 2 --prefill-chunk 300" "--cp 4" "--pp 2" "--pp 2 --tp 2 --ep 2" \
    "--pp 3 --cp 2 --prefill-chunk 100" "--cp 2 --ep 2" "--tp 2 --cp 2 --ep 4 --prefill-chunk 200" \
    "--tp 2 --cp 2 --ep 2" "--cp 4 --ep 2 --prefill-chunk 100" "--cp 2 --ep 2 --ranks-per-node 1"
trained --steps 2 --dtype bf16
contexts bf16 "--cp 1" "--cp 2" "--cp 4 --tp 2 --prefill-chunk 200" "--cp 8" "--pp 2 --cp 2" "--pp 4 --tp 2"
finish
