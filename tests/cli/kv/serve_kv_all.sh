#!/usr/bin/env bash
# all
# serve_kv_all.sh - keys and values in 8 bits in every layout, both dtypes, and of the families whose attention
# differs: windows, sinks, softcap, latent attention (see serve_kv.py). bf16 pages of an fp32 model.
. "$(dirname "$0")/../lib/serve_lib.bash"
sizes='"hidden_size":64,"num_hidden_layers":4,"num_attention_heads":8,"vocab_size":256,"max_position_embeddings":512'
dense="$sizes,\"intermediate_size\":128,\"num_key_value_heads\":2,\"head_dim\":16"

# kinds NAME DTYPE PART [CONFIG]
kinds() {
    local name=$1 dtype=$2 part=$3
    [ $# = 3 ] || echo "{$4}" >"$TMP/$name.json"
    trained "$name" --steps 2 --dtype "$dtype" ${4:+--model "$TMP/$name.json"}
    for kind in fp8 int8; do
        what="$name $kind" asked serve_kv.py "$TMP/$name/step-2" $kind $part
    done
}
kinds bf16 bf16 all
kinds fp32 fp32 all
what="fp32 bf16" asked serve_kv.py "$TMP/fp32/step-2" bf16 few
kinds windows bf16 family "\"model_type\":\"qwen2\",\"use_sliding_window\":true,\"sliding_window\":100,\"max_window_layers\":1,$dense"
kinds gemma2 bf16 family "\"model_type\":\"gemma2\",\"sliding_window\":70,\"query_pre_attn_scalar\":16,\"attn_logit_softcapping\":50.0,\"final_logit_softcapping\":30.0,$dense"
kinds sinks bf16 family "\"model_type\":\"gpt_oss\",\"sliding_window\":64,\"num_local_experts\":4,\"num_experts_per_tok\":2,$dense"
kinds latent bf16 family "\"model_type\":\"deepseek_v3\",\"n_routed_experts\":6,\"num_experts_per_tok\":2,\"moe_intermediate_size\":40,\"n_shared_experts\":null,\"n_group\":1,\"topk_group\":1,\"q_lora_rank\":null,\"kv_lora_rank\":20,\"qk_rope_head_dim\":4,\"qk_nope_head_dim\":9,\"v_head_dim\":7,\"first_k_dense_replace\":0,\"norm_topk_prob\":false,\"intermediate_size\":128,\"num_key_value_heads\":8,$sizes"
finish
