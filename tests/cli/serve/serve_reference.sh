#!/usr/bin/env bash
# quick
# serve_reference.sh - Hugging Face folders with reference numbers, served at tp 1, 2 and 4, checked by the
# fixtures' own client.
here=$(cd "$(dirname "$0")" && pwd)
. "$here/../lib/lib.bash"
command -v python3 >/dev/null || { skip "no python3"; finish; }
check=${FIXTURES:-}/hf/check_server.py
[ -n "${FIXTURES:-}" ] && [ -e "$check" ] ||
    { skip "FIXTURES is not set: no reference numbers for the server"; finish; }
for model in llama3-gqa-f32 llama3-tied-bf16-sharded llama2-mha-f32 mistral-swa-f32 qwen2-bias-tied-f32 \
    qwen2-yarn-f32 qwen3-qknorm-bf16 gpt2-f32 \
    mixtral-f32-sharded qwen3moe-f32 qwen2moe-f32 gptoss-f32 gemma2-f32 gemma3-f32 neox-f32 deepseek3-f32; do
    fixture=$FIXTURES/hf/hf/$model
    [ -d "$fixture" ] || fixture=$FIXTURES/experts/hf/$model
    for tp in $(case $model in llama* | gptoss* | gemma* | neox* | deepseek*) echo 1 2 4 ;; *) echo 1 4 ;; \
        esac); do
        "$BIN/pserve" "$fixture/model" --port 0 --tp $tp --dtype fp32 --model-name default >"$TMP/ready" \
            2>"$TMP/.err" &
        server=$!
        for _ in $(seq 300); do
            grep -q ready "$TMP/ready" && break
            sleep 0.1
        done
        url=$(sed -n 's|.*ready on \(http://[^ ]*\) .*|\1|p' "$TMP/ready")
        timeout -k 10 120 python3 "$check" --base-url "$url" --fixture "$fixture" >"$TMP/.out" 2>&1
        rc=$?
        claim "$model at tp $tp gives the reference's tokens and log-probs" [ $rc = 0 ]
        kill "$server"
        wait "$server"
        rc=$?
        claim "and ends well" [ $rc = 0 ]
        : >"$TMP/ready"
    done
done
finish
