#!/usr/bin/env bash
# quick
# parity.sh - the reference's runs of Llama, GPT-2 and mixtures of experts: loss and gradient norm of every
# step, final weights, both moments. Needs $FIXTURES and python3. PARITY=ep: those of experts at ep 2, on two
# ranks.
. "$(dirname "$0")/../lib/lib.bash"
here=$(cd "$(dirname "$0")" && pwd)
[ -n "${FIXTURES:-}" ] || { skip "FIXTURES is not set: no reference runs"; finish; }
[ -d "$FIXTURES/hf/train" ] || { skip "no $FIXTURES/hf/train: no reference runs"; finish; }
command -v python3 >/dev/null || { skip "no python3 to compare with"; finish; }

experts="mixtral-noaux-f32 qwen3moe-noaux-f32 deepseek3-noaux-f32" layout=
names="llama-f32 llama-bf16-master gpt2-f32 $experts"
[ "${PARITY:-}" != ep ] || { names=$experts layout="--ranks 2 --ep 2 --zero 1"; }

# whole NAME: the run's last checkpoint as one rank writes it
whole() {
    local at=("$TMP/$1"/step-*)
    [ -n "$layout" ] || { echo "${at[0]}"; return; }
    "$BIN/reshard" "${at[0]}" "$TMP/$1.whole" >&2 && echo "$TMP/$1.whole"
}

for name in $names; do
    runs=$FIXTURES/hf/train
    [ -d "$runs/$name" ] || runs=$FIXTURES/experts/train
    dtype=$([ $name = llama-bf16-master ] && echo bf16 || echo fp32)
    args=$(python3 "$here/parity.py" options "$runs/$name") ||
        { claim "$name: run.json is read" false; continue; }
    run timeout -k 10 250 "$BIN/ptrain" $args --dtype $dtype $layout --out "$TMP/$name" --log \
        "$TMP/$name.jsonl"
    claim "$name: the run ends well" [ $rc = 0 ] || continue
    ours=$(whole "$name")
    run reshard --format hf "$ours" "$TMP/$name.hf"
    claim "$name: its weights as a Hugging Face folder" [ $rc = 0 ]
    run timeout -k 10 250 "$BIN/ptrain" $args --dtype $dtype $layout --stop-after 1 --beta1 0 --clip 0 --out \
        "$TMP/$name-first"
    claim "$name: one step of it" [ $rc = 0 ] || continue
    run python3 "$here/parity.py" compare "$runs/$name" "$TMP/$name.jsonl" "$ours" "$TMP/$name.hf" "$TMP" \
        "$(whole "$name-first")"
    sed 's/^/    /' <<<"$out"
    claim "$name: losses and norms of every step are the reference's" [ $((rc & 1)) = 0 ]
    if [ $rc -ge 4 ]; then
        skip "$name: python3 has no numpy: weights and moments are not compared"
    else
        claim "$name: final weights, moments and the first gradient are the reference's" [ $((rc & 2)) = 0 ]
    fi
done
finish
