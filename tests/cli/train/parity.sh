#!/usr/bin/env bash
# quick
# parity.sh - the reference's runs of Llama, GPT-2 and mixtures of experts: loss and gradient norm of every step, final weights, both moments. Needs $FIXTURES and python3.
. "$(dirname "$0")/../lib/lib.bash"
here=$(cd "$(dirname "$0")" && pwd)
[ -n "${FIXTURES:-}" ] || { skip "FIXTURES is not set: no reference runs"; finish; }
[ -d "$FIXTURES/hf/train" ] || { skip "no $FIXTURES/hf/train: no reference runs"; finish; }
command -v python3 >/dev/null || { skip "no python3 to compare with"; finish; }

for name in llama-f32 llama-bf16-master gpt2-f32 mixtral-noaux-f32 qwen3moe-noaux-f32 deepseek3-noaux-f32; do
    runs=$FIXTURES/hf/train
    [ -d "$runs/$name" ] || runs=$FIXTURES/experts/train
    dtype=$([ $name = llama-bf16-master ] && echo bf16 || echo fp32)
    args=$(python3 "$here/parity.py" options "$runs/$name") || { claim "$name: run.json is read" false; continue; }
    run timeout -k 10 250 "$BIN/ptrain" $args --dtype $dtype --out "$TMP/$name" --log "$TMP/$name.jsonl"
    claim "$name: the run ends well" [ $rc = 0 ] || continue
    run reshard --format hf "$TMP/$name"/step-* "$TMP/$name.hf"
    claim "$name: its weights as a Hugging Face folder" [ $rc = 0 ]
    run timeout -k 10 250 "$BIN/ptrain" $args --dtype $dtype --stop-after 1 --beta1 0 --clip 0 --out "$TMP/$name-first"
    claim "$name: one step of it" [ $rc = 0 ] || continue
    run python3 "$here/parity.py" compare "$runs/$name" "$TMP/$name.jsonl" "$TMP/$name"/step-* "$TMP/$name.hf" "$TMP" "$TMP/$name-first/step-1"
    sed 's/^/    /' <<<"$out"
    claim "$name: losses and norms of every step are the reference's" [ $((rc & 1)) = 0 ]
    if [ $rc -ge 4 ]; then
        skip "$name: python3 has no numpy: weights and moments are not compared"
    else
        claim "$name: final weights, moments and the first gradient are the reference's" [ $((rc & 2)) = 0 ]
    fi
done
finish
