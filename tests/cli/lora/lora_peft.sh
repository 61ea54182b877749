#!/usr/bin/env bash
# all
# lora_peft.sh - PEFT and torch train adapters of small models here (Llama, Qwen2, Qwen3, Mixtral's attention,
# GPT-2's fused matrices; rslora, ranks by pattern, random B), and every loss, gradient norm, first gradient,
# trained matrix and moment of ptrain --lora-init is compared. PEFT loads the checkpoint of ptrain, and
# transformers the model that reshard --merge makes of it. Needs $PEER_PYTHON (torch, transformers, peft).
. "$(dirname "$0")/../lib/train_lib.bash"
here=$(cd "$(dirname "$0")" && pwd) train=$(cd "$(dirname "$0")/../train" && pwd)
python=${PEER_PYTHON:-python3}
"$python" -c 'import torch, transformers, peft, numpy, safetensors' 2>/dev/null ||
    { skip "no torch, transformers and peft here (PEER_PYTHON names a python that has them)"; finish; }
export PYTHONPATH=$train HF_HUB_OFFLINE=1 HF_HOME=$TMP/hub TRANSFORMERS_VERBOSITY=error OMP_NUM_THREADS=1

text 5 12000 >"$TMP/text"
run "$python" -B "$here/lora_peft.py" make "$TMP/runs" "$TMP/text"
claim "PEFT trains the adapters" [ $rc = 0 ] || finish

for dir in "$TMP"/runs/*; do
    name=${dir##*/}
    read -ra args < <(python3 "$train/parity.py" options "$dir")
    args+=(--lora-init "$dir/adapter" --threads 1)
    run timeout -k 10 200 "$BIN/ptrain" "${args[@]}" --out "$TMP/$name" --log "$TMP/$name.jsonl"
    claim "$name: the run ends well" [ $rc = 0 ] || continue
    run timeout -k 10 200 "$BIN/ptrain" "${args[@]}" --stop-after 1 --beta1 0 --clip 0 --out \
        "$TMP/$name-first"
    claim "$name: one step of it" [ $rc = 0 ] || continue
    run python3 "$train/parity.py" steps "$dir" "$TMP/$name.jsonl" "$TMP"
    echo "    $name: $out"
    claim "$name: losses and norms of every step are those of PEFT" [ $rc = 0 ]
    step=$(echo "$TMP/$name"/step-*)
    mv "$step" "$TMP/$name.ckpt"
    python3 "$train/parity.py" moments "$TMP/$name.ckpt" exp_avg. "$TMP/$name.adam_m"
    python3 "$train/parity.py" moments "$TMP/$name.ckpt" exp_avg_sq. "$TMP/$name.adam_v"
    python3 "$train/parity.py" moments "$TMP/$name-first/step-1" exp_avg. "$TMP/$name.grad0"
    cp "$TMP/$name.ckpt/adapter_model.safetensors" "$TMP/$name.final"
    run reshard --format hf --merge "$TMP/$name.ckpt" "$dir/init" "$TMP/$name.merged"
    claim "$name: reshard merges the checkpoint" [ $rc = 0 ]
done
run "$python" -B "$here/lora_peft.py" check "$TMP/runs" "$TMP" "$TMP/text"
echo "$out"
claim "gradients, matrices and moments are those of PEFT, which loads the checkpoints" [ $rc = 0 ]
finish
