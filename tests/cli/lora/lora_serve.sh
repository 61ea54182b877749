#!/usr/bin/env bash
# all
# lora_serve.sh - a server's log-probs with an adapter that ptrain trained are those of ptrain --eval-logprobs,
# bit for bit, at other layouts, in both dtypes; from the checkpoint as it is, and resharded (PEFT's folder,
# two ranks). See lora_serve.py.
. "$(dirname "$0")/../lib/train_lib.bash"
here=$(cd "$(dirname "$0")" && pwd)
command -v python3 >/dev/null || { skip "no python3"; finish; }
export BIN PYTHONPATH=$here/../lib no_proxy=127.0.0.1,localhost
text 5 20000 >"$TMP/text"
head -c 800 "$TMP/text" >"$TMP/held-out"

# served FAMILY DTYPE TARGETS
served() {
    local p f name="$1 $2"
    family "$TMP/model.json" "$1" && sed -i 's/"n_positions":70/"n_positions":256/' "$TMP/model.json"
    rm -rf "$TMP/base" "$TMP/run" "$TMP/peft" "$TMP/two"
    run ptrain --data "$TMP/text" --model "$TMP/model.json" --out "$TMP/base" --dtype "$2" --steps 1 \
        --seq-len 63 --global-batch 2
    run ptrain --data "$TMP/text" --init "$TMP/base/step-1" --lora "r=5,alpha=40,targets=$3" --out "$TMP/run" \
        --dtype "$2" --steps 4 --seq-len 63 --global-batch 4 --ranks 4 --tp 2 --zero 3 --lr 2e-2
    claim "$name: an adapter is trained" [ $rc = 0 ] || return
    run reshard --format hf "$TMP/run/step-4" "$TMP/peft"
    claim "$name: reshard makes PEFT's folder" cmp "$TMP/peft/adapter_config.json" \
        "$TMP/run/step-4/adapter_config.json"
    run reshard --tp 2 --dp 2 --zero 1 "$TMP/run/step-4" "$TMP/two"
    claim "$name: … and cuts the checkpoint for other ranks" [ $rc = 0 ]
    run ptrain --data "$TMP/text" --out "$TMP/run" --resume "$TMP/two" --steps 5 --stop-after 5 --tp 2
    claim "$name: which a run goes on with" [ $rc = 0 ]
    run ptrain --eval-only --init "$TMP/base/step-1" --lora-init "$TMP/run/step-4" --eval-data "$TMP/held-out" \
        --seq-len 129 --dtype "$2" --eval-logprobs "$TMP/eval.jsonl"
    claim "$name: it is evaluated" [ $rc = 0 ] || return
    run ptrain --eval-only --init "$TMP/base/step-1" --lora-init "$TMP/two" --eval-data "$TMP/held-out" \
        --seq-len 129 --dtype "$2" --eval-logprobs "$TMP/cut.jsonl" --tp 2 --pp 2
    claim "$name: the same log-probs from the cut one, elsewhere" cmp -s "$TMP/eval.jsonl" "$TMP/cut.jsonl"
    python3 -B "$here/lora_serve.py" "$TMP/base/step-1" "$TMP/eval.jsonl" "$TMP/run/step-4" "$TMP/peft" \
        "--tp 1" "--tp 2 --prefill-chunk 7" "--pp 2" >"$TMP/served" 2>&1
    grep -v '^[0-9]* passed' "$TMP/served" | sed "s/^/$name: /"
    read -r p f <<<"$(sed -n 's/^\([0-9]*\) passed, \([0-9]*\) failed.*/\1 \2/p' "$TMP/served")"
    n_passed=$((n_passed + ${p:-0})) n_failed=$((n_failed + ${f:-1}))
}
served qwen2 fp32 all-linear
served qwen3 bf16 q_proj,o_proj,down_proj
served gpt2 fp32 c_attn,c_proj
finish
