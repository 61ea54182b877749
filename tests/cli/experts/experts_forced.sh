#!/usr/bin/env bash
# quick
# experts_forced.sh - what a router chooses by itself almost never: equal scores, experts without a token, all
# tokens at one expert, all experts or the only one chosen. Six experts on four ranks, sequences of 63.
# EXPERTS_FORCED=mixtral|gpt_oss|deepseek_v3: that family alone, in both dtypes, at more layouts.
here=$(cd "$(dirname "$0")" && pwd)
. "$here/../lib/train_lib.bash"
command -v python3 >/dev/null || { skip "no python3"; finish; }
text 7 30000 >"$TMP/text"
every=${EXPERTS_FORCED:+yes}
sizes='"hidden_size":40,"num_hidden_layers":2,"num_attention_heads":4,"num_key_value_heads":2,"head_dim":10,"intermediate_size":56,"vocab_size":256,"max_position_embeddings":64,"initializer_range":0.1'

# model_json EXPERTS CHOSEN: the config of a model of $model: with six experts DeepSeek has three groups of
# them, two of which a token may choose from
model_json() {
    local mine=$sizes groups
    groups=$([ "$1" = 6 ] && echo '"n_group":3,"topk_group":2' || echo '"n_group":1,"topk_group":1')
    case $model in
    mixtral) mine+=",\"num_local_experts\":$1" ;;
    gpt_oss) mine+=",\"num_local_experts\":$1,\"sliding_window\":9,\"swiglu_limit\":0.75" ;;
    deepseek_v3)
        mine=${sizes/\"num_key_value_heads\":2,\"head_dim\":10/\"num_key_value_heads\":4}
        mine+=",\"n_routed_experts\":$1,\"moe_intermediate_size\":24,\"n_shared_experts\":1,$groups,\"q_lora_rank\":12,\"kv_lora_rank\":20,\"qk_rope_head_dim\":4,\"qk_nope_head_dim\":6,\"v_head_dim\":7,\"first_k_dense_replace\":0" ;;
    esac
    echo "{\"model_type\":\"$model\",$mine,\"num_experts_per_tok\":$2}"
}

# started EXPERTS CHOSEN: $TMP/start, the weights of a $model as a Hugging Face folder
started() {
    rm -rf "$TMP/model" "$TMP/start" "$TMP/model.json"
    model_json "$1" "$2" >"$TMP/model.json"
    run ptrain --data "$TMP/text" --model "$TMP/model.json" --steps 1 --lr 0 --seq-len 63 --global-batch 1 \
        --out "$TMP/model"
    claim "$model, $2 of $1 experts: it is made" [ $rc = 0 ] || finish
    run reshard --format hf "$TMP/model/step-1" "$TMP/start"
    claim "$model, $2 of $1 experts: and written" [ $rc = 0 ] || finish
}

# loads RUN: of every layer in the first step, the largest count over the mean one
loads() { sed -n 's/.*"expert_load":\[\([^]]*\)\].*/\1/p' "$TMP/$1.jsonl" | head -n 1 | tr ',' ' '; }

# forced CASE LOAD LAYOUT...: the layouts have the bits of one rank; LOAD: of every layer in the first step,
# or any
forced() {
    local case=$1 load=$2 dtype layout
    shift 2
    rm -rf "$TMP/$case" && cp -r "$TMP/start" "$TMP/$case"
    [ "$case" = as_made ] || run python3 -B "$here/experts_forced.py" "$TMP/$case" "$case"
    claim "$model, $case: the weights are changed" [ $rc = 0 ] || return
    for dtype in fp32 ${every:+bf16}; do
        common=(--data "$TMP/text" --init "$TMP/$case" --steps 3 --lr 1e-4 --seq-len 63 --global-batch 4 \
            --threads 1 --dtype $dtype)
        reference
        for x in $(loads reference); do
            [ "$load" = any ] || claim "$model, $case $dtype: the load of a layer is $load" [ "$x" = "$load" ]
        done
        for layout in "$@" ${every:+"--tp 2"} ${every:+"--ep 2 --ranks 4 --zero 1 --recompute full"} \
            ${every:+"--tp 2 --ep 2 --ranks 4 --zero 3 --recompute selective"}; do
            # shellcheck disable=SC2086
            same "$model, $case $dtype" $layout
        done
    done
}

ep4="--ep 4 --ranks 4 --zero 1 --micro-batch 1" tp2_ep4="--tp 2 --ep 4 --ranks 4 --micro-batch 2"
# all_cases: of $model
all_cases() {
    started 6 2
    forced zero 3 "$ep4"
    forced pairs any "$tp2_ep4"
    forced two_absent any "--ep 2 --ranks 2 --micro-batch 1"
    forced equal_rows any "$ep4" "$tp2_ep4"
    forced first_absent any "$ep4"
    forced two_take_all 3 "$ep4" "$tp2_ep4"

    started 6 1
    forced last_takes_all 6 "$ep4"
    forced first_takes_all 6 "$ep4" "$tp2_ep4"
    [ $model = mixtral ] || forced bias_takes_all 6 "$ep4" "$tp2_ep4"

    started 4 4
    forced as_made 1 "$tp2_ep4"
    forced zero 1 "$ep4"
}

# what differs between the families: one case of each form of a tie, one of an expert without a token, one
# that all tokens take
sample() {
    model=mixtral
    started 6 2
    forced zero 3 "$ep4"
    forced pairs any "$tp2_ep4"
    forced two_absent any "--ep 2 --ranks 2 --micro-batch 1"
    started 6 1
    forced last_takes_all 6 "$ep4"
    started 4 4
    forced as_made 1 "$tp2_ep4"

    model=gpt_oss
    started 6 2
    forced zero 3 "$ep4"
    model=deepseek_v3
    started 6 2
    forced zero 3 "$tp2_ep4"
    started 6 1
    forced bias_takes_all 6 "$ep4"
}

if [ -n "$every" ]; then
    model=$EXPERTS_FORCED
    all_cases
    [ "$model" = mixtral ] || finish
else
    sample
fi

model=mixtral
started 1 1
every=
forced as_made 1 "--tp 2"
run "$BIN/ptrain" "${common[@]}" --out "$TMP/refused" --ep 2 --ranks 2
claim "one expert on two ranks is refused in one line" [ "$rc/$(wc -l <"$TMP/.err")" = 2/1 ]
finish
