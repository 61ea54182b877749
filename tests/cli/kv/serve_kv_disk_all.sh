#!/usr/bin/env bash
# all
# serve_kv_disk_all.sh - pages in a folder (--kv-disk), in 8 bits, in other layouts, with windows in some layers and
# with latent attention: see serve_kv_disk.py. Pages of adapters, of two kinds and of other weights are apart.
. "$(dirname "$0")/../lib/serve_lib.bash"
sizes='"hidden_size":64,"num_hidden_layers":4,"num_attention_heads":8,"vocab_size":256,"max_position_embeddings":512'

# kept NAME ARGS...: on the model of $run
kept() {
    what=$1 asked serve_kv_disk.py "$TMP/$run/step-2" "$TMP/pages-$run-${1// /}" all "${@:2}"
}
run=bf16
trained $run --steps 2 --dtype bf16
kept "bf16 int8" --kv-dtype int8
kept "bf16 fp8 drafts" --kv-dtype fp8 --speculate ngram
kept "two stages" --pp 2
kept "cp 2" --cp 2
kept "cp 2 on two machines" --cp 2 --ranks-per-node 1
kept "chunks of 50" --prefill-chunk 50
run=windows
echo "{\"model_type\":\"qwen2\",\"use_sliding_window\":true,\"sliding_window\":100,\"max_window_layers\":1,$sizes,\"intermediate_size\":128,\"num_key_value_heads\":2,\"head_dim\":16}" >"$TMP/config.json"
trained $run --steps 2 --dtype bf16 --model "$TMP/config.json"
kept "windows"
kept "windows int8" --kv-dtype int8 --prefill-chunk 100
run=latent
echo "{\"model_type\":\"deepseek_v3\",\"n_routed_experts\":6,\"num_experts_per_tok\":2,\"moe_intermediate_size\":40,\"n_shared_experts\":null,\"n_group\":1,\"topk_group\":1,\"q_lora_rank\":null,\"kv_lora_rank\":20,\"qk_rope_head_dim\":4,\"qk_nope_head_dim\":9,\"v_head_dim\":7,\"first_k_dense_replace\":0,\"norm_topk_prob\":false,\"intermediate_size\":128,\"num_key_value_heads\":8,$sizes}" >"$TMP/config.json"
trained $run --steps 2 --dtype bf16 --model "$TMP/config.json"
kept "latent"
finish
