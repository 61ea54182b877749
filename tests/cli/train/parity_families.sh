#!/usr/bin/env bash
# all
# parity_families.sh - what parity.sh is to Llama and GPT-2, for the families that have no recorded run:
# transformers trains the same small model here (sliding window, biases, norms of heads, Llama-3, YaRN and
# linear RoPE, tied or not, documents), and every loss, gradient norm, first gradient, final weight and moment
# is compared. Needs a python ($PYTHON, else python3) with torch, transformers, numpy and safetensors.
. "$(dirname "$0")/../lib/train_lib.bash"
here=$(cd "$(dirname "$0")" && pwd)
python=${PYTHON:-python3}
"$python" -c 'import torch, transformers, numpy, safetensors' 2>/dev/null ||
    { skip "no torch and transformers here (PYTHON names one that has them)"; finish; }
export HF_HUB_OFFLINE=1 HF_HOME=$TMP/hub TRANSFORMERS_VERBOSITY=error OMP_NUM_THREADS=1

text 5 30000 | fold -w 150 |
    awk 'BEGIN { srand(3) } { print "{\"text\":\"" substr($0, 1, 1 + int(rand() * 70)) "\"}" }' |
        tr -d '\r' >"$TMP/docs.jsonl"
run ptok prepare --tokenizer bytes "$TMP/docs.jsonl" --out "$TMP/docs.bin"
claim "documents to train on" [ $rc = 0 ] || finish
run "$python" -B "$here/parity_torch.py" make "$TMP/runs" "$TMP/docs.bin" "$TMP/docs.jsonl"
claim "transformers trains the models" [ $rc = 0 ] || finish

for name in $out; do
    dir=$TMP/runs/$name
    read -ra args < <(python3 "$here/parity.py" options "$dir")
    [[ $name != *-documents ]] || args+=(--documents 48)
    run timeout -k 10 200 "$BIN/ptrain" "${args[@]}" --out "$TMP/$name" --log "$TMP/$name.jsonl"
    claim "$name: the run ends well" [ $rc = 0 ] || continue
    run timeout -k 10 200 "$BIN/ptrain" "${args[@]}" --stop-after 1 --beta1 0 --clip 0 --out \
        "$TMP/$name-first"
    claim "$name: one step of it" [ $rc = 0 ] || continue
    run python3 "$here/parity.py" steps "$dir" "$TMP/$name.jsonl" "$TMP"
    echo "    $name: $out"
    claim "$name: losses and norms of every step are those of transformers" [ $rc = 0 ]
    run reshard --format hf --weights-only "$TMP/$name"/step-* "$TMP/$name.hf"
    python3 "$here/parity.py" moments "$TMP/$name"/step-* exp_avg. "$TMP/adam_m"
    python3 "$here/parity.py" moments "$TMP/$name"/step-* exp_avg_sq. "$TMP/adam_v"
    python3 "$here/parity.py" moments "$TMP/$name-first/step-1" exp_avg. "$TMP/grad0"
    for file in grad0 final adam_m adam_v; do
        ours=$TMP/$file
        [ $file != final ] || ours=$TMP/$name.hf/model.safetensors
        run "$python" -B "$here/parity_torch.py" compare "$dir" $file "$ours"
        claim "$name: every tensor of $file is that of transformers: $out" [ $rc = 0 ]
    done
done
finish
