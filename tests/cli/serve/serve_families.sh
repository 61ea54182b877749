#!/usr/bin/env bash
# quick
# serve_families.sh - every family's served log-probs are ptrain --eval-logprobs', bit for bit, and name the
# weights: see serve_families.py. Trained here for two steps, in another layout, and served from a Hugging
# Face folder. A sample; serve_families_all.sh has every family without experts in both dtypes at every tp,
# serve_experts_all.sh those with experts.
here=$(cd "$(dirname "$0")" && pwd)
. "$here/../lib/train_lib.bash"
command -v python3 >/dev/null || { skip "no python3"; finish; }
text 5 20000 >"$TMP/text"
head -c 1200 "$TMP/text" >"$TMP/held-out"

# served FAMILY DTYPE SERVER...
served() {
    local name=$1 dtype=$2 p f digest
    shift 2
    case $name in
    llama3) config "$TMP/model.json" \
        'rope_theta=10000.0,"rope_scaling":{"rope_type":"llama3","factor":8.0,"low_freq_factor":1.0,"high_freq_factor":4.0,"original_max_position_embeddings":32}' ;;
    tied) config "$TMP/model.json" tie_word_embeddings=true ;;
    *) family "$TMP/model.json" "$name" && sed -i 's/"n_positions":70/"n_positions":256/' "$TMP/model.json" ;;
    esac
    rm -rf "$TMP/run"
    run ptrain --data "$TMP/text" --model "$TMP/model.json" --out "$TMP/run" --dtype "$dtype" --steps 2 \
        --seq-len 63 --global-batch 4 --tp 2 --lr 1e-2
    claim "$name $dtype is trained" [ $rc = 0 ] || return
    run ptrain --eval-only --init "$TMP/run/step-2" --eval-data "$TMP/held-out" --seq-len 129 \
        --eval-logprobs "$TMP/eval.jsonl"
    claim "$name $dtype is evaluated" [ $rc = 0 ] || return
    rm -rf "$TMP/hf"
    run reshard --format hf "$TMP/run/step-2" "$TMP/hf"
    run reshard digest "$TMP/hf"
    claim "$name $dtype becomes a Hugging Face folder" [ $rc = 0 ] || return
    digest=$(sed -n 's/^weights_digest //p' <<<"$out")
    WEIGHTS=contract1-$dtype-$digest python3 -B "$here/serve_families.py" "$TMP/hf" "$TMP/eval.jsonl" "$@" \
        >"$TMP/served" 2>&1
    grep -v '^[0-9]* passed' "$TMP/served" | sed "s/^/$name $dtype: /"
    read -r p f <<<"$(sed -n 's/^\([0-9]*\) passed, \([0-9]*\) failed.*/\1 \2/p' "$TMP/served")"
    n_passed=$((n_passed + ${p:-0})) n_failed=$((n_failed + ${f:-1}))
}

case ${SERVE_FAMILIES:-sample} in
dense)
    # every layer of this mistral has a window: its sequences give pages back before these run out
    declare -A few=([mistral]=)
    for name in llama-biases llama3 tied mistral qwen2 qwen3 gpt2 gemma2 gemma3 neox; do
        for dtype in fp32 bf16; do
            served $name $dtype "--tp 1" "--tp 2 --prefill-chunk 7" "--tp 4 --prefix-cache off" \
                "--tp 8 --prefill-chunk 50" "--cp 4" "--tp 2 --cp 2 --prefill-chunk 100" \
                "--pp 2 --prefill-chunk 60" "--pp 2 --tp 2 --cp 2" \
                ${few[$name]-"--tp 1 --threads 2 --max-batch 5 --ctx 256 --kv-memory few"}
        done
    done ;;
experts)
    # 6 experts are fewer than 8 ranks
    declare -A last=([qwen2_moe]="--tp 1 --prefix-cache off" [gpt_oss]="--tp 1 --prefix-cache off")
    for name in mixtral qwen2_moe qwen3_moe gpt_oss deepseek_v3; do
        for dtype in fp32 bf16; do
            served $name $dtype "--tp 1" "--tp 2 --prefill-chunk 7" "--tp 4 --prefix-cache off" \
                "--tp 8 --prefill-chunk 50" \
                "--cp 4" "--tp 2 --cp 2 --prefill-chunk 100" "--pp 2 --cp 2" "--pp 2 --tp 2 --ep 2" \
                "--cp 2 --ep 2" "--tp 2 --cp 2 --ep 4" \
                "--tp 2 --ep 2 --prefix-cache off" \
                    "--tp 4 --ep 4 --prefill-chunk 7" \
                    "--tp 4 --ep 4 --max-batch 5 --ctx 256 --kv-memory few" \
                "--tp 2 --ctx 256 --kv-memory few" "${last[$name]:---tp 8 --ep 8 --prefill-chunk 50}"
        done
    done ;;
*)
    served mistral fp32 "--tp 1 --prefill-chunk 50" "--cp 2 --prefill-chunk 100"
    served qwen2 bf16 "--tp 2 --pp 2"
    served qwen3 bf16 "--tp 1"
    served gpt2 fp32 "--tp 1"
    served qwen2_moe fp32 "--tp 4 --ep 4 --prefill-chunk 7" "--cp 4 --ep 4"
    served gemma2 bf16 "--tp 2 --cp 2"
    served gemma3 fp32 "--tp 1" "--pp 2"
    served neox bf16 "--tp 1" ;;
esac
finish
