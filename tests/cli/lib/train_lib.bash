# train_lib.bash - runs of ptrain that must give the same bits. Includes lib.bash.
. "$(dirname "${BASH_SOURCE[0]}")/lib.bash"

# text SEED BYTES: prints words that repeat, so that a model can learn something
text() {
    awk -v s="$1" -v n="$2" \
        'BEGIN { srand(s); split("the model rank tree sum of layer head token page shard step bits order", w, " ");
        while (c < n) { x = w[int(rand() * 14) + 1] (rand() < 0.1 ? ".\n" : " "); printf "%s", x; c += length(x) } }'
}

# config FILE KEY=VALUE...: writes the config of a small Llama with odd sizes, keys replaced
config() {
    local f=$1 pair body
    shift
    body='"model_type":"llama","hidden_size":72,"num_hidden_layers":2,"num_attention_heads":8,"num_key_value_heads":2,"head_dim":10,"intermediate_size":104,"vocab_size":701,"max_position_embeddings":256,"rms_norm_eps":1e-5,"rope_theta":10000.0,"tie_word_embeddings":false'
    for pair in "$@"; do
        body=$(sed "s/\"${pair%%=*}\":[^,]*/\"${pair%%=*}\":${pair#*=}/" <<<"$body")
    done
    echo "{$body}" >"$f"
}

# family FILE NAME: writes the config of a small model of another family, with odd sizes
family() {
    local sizes='"hidden_size":72,"num_hidden_layers":2,"num_attention_heads":8,"num_key_value_heads":2,"head_dim":10,"intermediate_size":104,"vocab_size":701,"max_position_embeddings":256'
    case $2 in
    llama-biases) echo "{\"model_type\":\"llama\",$sizes,\"attention_bias\":true,\"mlp_bias\":true}" ;;
    mistral) echo "{\"model_type\":\"mistral\",$sizes,\"sliding_window\":9}" ;;
    qwen2) echo "{\"model_type\":\"qwen2\",$sizes,\"tie_word_embeddings\":true,\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":4.0,\"original_max_position_embeddings\":16}}" ;;
    qwen3) echo "{\"model_type\":\"qwen3\",$sizes}" | sed 's/"head_dim":10/"head_dim":18/' ;;
    mixtral) echo "{\"model_type\":\"mixtral\",$sizes,\"num_local_experts\":8,\"num_experts_per_tok\":2,\"initializer_range\":0.1}" ;;
    qwen2_moe) # 6 experts: no ep divides them but 2, 3, 6
        echo "{\"model_type\":\"qwen2_moe\",${sizes/72/80},\"num_experts\":6,\"num_experts_per_tok\":3,\"moe_intermediate_size\":40,\"shared_expert_intermediate_size\":72,\"initializer_range\":0.1}" ;;
    qwen3_moe) # an MLP in the first layer
        echo "{\"model_type\":\"qwen3_moe\",$sizes,\"num_experts\":8,\"num_experts_per_tok\":4,\"moe_intermediate_size\":48,\"norm_topk_prob\":true,\"decoder_sparse_step\":2,\"initializer_range\":0.1}" ;;
    gpt_oss) # windows in turn, sinks, biases of experts; a limit that some values meet
        echo "{\"model_type\":\"gpt_oss\",$sizes,\"num_local_experts\":6,\"num_experts_per_tok\":2,\"sliding_window\":9,\"swiglu_limit\":0.75,\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":4.0,\"truncate\":false,\"original_max_position_embeddings\":16},\"initializer_range\":0.1}" ;;
    deepseek_v3) # an MLP in the first layer; groups; q compressed; YaRN with a scale of attention
        echo "{\"model_type\":\"deepseek_v3\",${sizes/,\"num_key_value_heads\":2,\"head_dim\":10/},\"num_key_value_heads\":8,\"n_routed_experts\":8,\"num_experts_per_tok\":3,\"moe_intermediate_size\":40,\"n_shared_experts\":2,\"n_group\":4,\"topk_group\":2,\"q_lora_rank\":28,\"kv_lora_rank\":36,\"qk_rope_head_dim\":6,\"qk_nope_head_dim\":10,\"v_head_dim\":14,\"first_k_dense_replace\":1,\"rope_scaling\":{\"type\":\"yarn\",\"factor\":4.0,\"mscale\":1.0,\"mscale_all_dim\":0.7,\"original_max_position_embeddings\":16},\"initializer_range\":0.1}" ;;
    deepseek_plain) # q not compressed, no groups, no shared expert
        echo "{\"model_type\":\"deepseek_v3\",${sizes/,\"num_key_value_heads\":2,\"head_dim\":10/},\"num_key_value_heads\":8,\"n_routed_experts\":6,\"num_experts_per_tok\":2,\"moe_intermediate_size\":40,\"n_shared_experts\":null,\"n_group\":1,\"topk_group\":1,\"q_lora_rank\":null,\"kv_lora_rank\":20,\"qk_rope_head_dim\":4,\"qk_nope_head_dim\":9,\"v_head_dim\":7,\"first_k_dense_replace\":0,\"norm_topk_prob\":false,\"initializer_range\":0.1}" ;;
    gpt2) echo '{"model_type":"gpt2","n_embd":72,"n_layer":2,"n_head":8,"n_inner":104,"vocab_size":701,"n_positions":70}' ;;
    gemma2) echo "{\"model_type\":\"gemma2\",$sizes,\"sliding_window\":9,\"query_pre_attn_scalar\":14,\"attn_logit_softcapping\":1.5,\"final_logit_softcapping\":2.5}" |
        sed 's/"num_key_value_heads":2/"num_key_value_heads":4/' ;;
    gemma3) echo "{\"model_type\":\"gemma3_text\",$sizes,\"sliding_window\":9,\"sliding_window_pattern\":2,\"tie_word_embeddings\":false}" ;;
    neox) echo "{\"model_type\":\"gpt_neox\",\"rotary_pct\":0.4,$sizes}" |
        sed 's/"hidden_size":72/"hidden_size":80/' ;;
    esac >"$1"
}

bits_of() { sed -n 's/.*"loss_bits":"\([0-9a-f]*\)".*"grad_norm_bits":"\([0-9a-f]*\)".*/\1 \2/p' "$1"; }
state_of() { sed -n 's/.*"state_digest":"\([0-9a-f]*\)".*/\1/p' <<<"$1" | tail -n 1; }

# train NAME ARGS...: trains into $TMP/NAME; fills $state (digest) and $bits (losses and norms)
train() {
    local name=$1
    shift
    rm -rf "$TMP/$name" "$TMP/$name.jsonl"
    run timeout -k 10 200 "$BIN/ptrain" "${common[@]}" --out "$TMP/$name" --log "$TMP/$name.jsonl" "$@"
    state=$(state_of "$out") bits=$(bits_of "$TMP/$name.jsonl" 2>/dev/null)
}

# reference ARGS...: the run that later ones are compared with
reference() {
    train reference "$@"
    ref_state=$state ref_bits=$bits ref_lines=$(wc -l <<<"$bits")
    claim "the reference of ${common[*]} runs" [ $rc = 0 ]
}

# same CODE-PATH ARGS...: a run with the reference's bits at every step and its final state
same() {
    local what=$1
    shift
    train layout "$@"
    claim "$what ($*): ends well" [ $rc = 0 ] &&
        claim "$what ($*): every loss and norm has the reference's bits" [ "$bits" = "$ref_bits" ] &&
        claim "$what ($*): the final state has the reference's digest" [ "$state" = "$ref_state" ]
}

# portable CODE-PATH ARGS...: the same with the portable kernels, the slowest: two steps of a small batch.
# They also make the reference, which stays theirs.
portable() {
    local common=("${common[@]}" --steps 2 --global-batch 2)
    reference
    SHARDLINE_ISA=portable same "$@"
}

# of_class ISA COMMAND...: runs with the kernels of another CPU class, where the processor has its
# instructions
of_class() {
    if SHARDLINE_ISA="$1" "$BIN/ptrain" --version | grep -q "cpu class $1,"; then
        SHARDLINE_ISA=$1 "${@:2}"
    else
        skip "no $1 here: ${*:3}"
    fi
}
