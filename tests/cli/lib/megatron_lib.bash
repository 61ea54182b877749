# megatron_lib.bash - small models of the families that reshard writes for Megatron. Includes lib.bash.
. "$(dirname "${BASH_SOURCE[0]}")/lib.bash"

# write_config NAME: prints the config.json of a small model. The vocabulary is a multiple of nothing.
write_config() {
    local base='"hidden_size":24,"num_hidden_layers":2,"num_attention_heads":4,"num_key_value_heads":2,"intermediate_size":40,"vocab_size":257,"max_position_embeddings":64,"rms_norm_eps":1e-5,"rope_theta":10000.0,"tie_word_embeddings":false'
    local moe='"num_experts":4,"num_experts_per_tok":2,"moe_intermediate_size":16,"norm_topk_prob":true'
    case $1 in
        llama) echo "{\"model_type\":\"llama\",$base}" ;;
        biases) echo "{\"model_type\":\"llama\",\"attention_bias\":true,\"mlp_bias\":true,$base}" ;;
        mistral) echo "{\"model_type\":\"mistral\",\"sliding_window\":8,$base}" ;;
        qwen2) echo "{\"model_type\":\"qwen2\",${base/embeddings\":false/embeddings\":true}}" ;;
        qwen3) echo "{\"model_type\":\"qwen3\",\"head_dim\":8,$base}" ;;
        mixtral) echo "{\"model_type\":\"mixtral\",\"num_local_experts\":4,\"num_experts_per_tok\":2,$base}" ;;
        qwen2_moe) echo "{\"model_type\":\"qwen2_moe\",\"shared_expert_intermediate_size\":24,$moe,$base}" ;;
        qwen3_moe) echo "{\"model_type\":\"qwen3_moe\",\"head_dim\":8,$moe,$base}" ;;
        deepseek_v3) # the first layer has no experts
            echo "{\"model_type\":\"deepseek_v3\",\"q_lora_rank\":12,\"kv_lora_rank\":8,\"qk_nope_head_dim\":6,\"qk_rope_head_dim\":4,\"v_head_dim\":10,\"n_routed_experts\":4,\"n_shared_experts\":1,\"num_experts_per_tok\":2,\"moe_intermediate_size\":16,\"first_k_dense_replace\":1,\"n_group\":1,\"topk_group\":1,\"norm_topk_prob\":true,\"routed_scaling_factor\":1.5,\"scoring_func\":\"sigmoid\",\"topk_method\":\"noaux_tc\",${base/heads\":2/heads\":4}}" ;;
        deepseek_plain) # q not compressed, experts in every layer
            echo "{\"model_type\":\"deepseek_v3\",\"q_lora_rank\":null,\"kv_lora_rank\":8,\"qk_nope_head_dim\":6,\"qk_rope_head_dim\":4,\"v_head_dim\":6,\"n_routed_experts\":4,\"n_shared_experts\":null,\"num_experts_per_tok\":2,\"moe_intermediate_size\":16,\"first_k_dense_replace\":0,\"n_group\":1,\"topk_group\":1,\"norm_topk_prob\":true,${base/heads\":2/heads\":4}}" ;;
        gpt2) echo '{"model_type":"gpt2","n_embd":24,"n_layer":2,"n_head":4,"n_positions":64,"vocab_size":257}' ;;
    esac
}

# train_model NAME OPTIONS…: NAME/step-2, of such a model
train_model() {
    local name=$1
    shift
    write_config "$name" >"$name.json"
    run ptrain --data text --model "$name.json" --steps 3 --stop-after 2 --seq-len 15 --global-batch 4 --threads 1 \
        --seed 7 --out "$name" "$@"
    claim "$name is trained" [ $rc = 0 ]
}
