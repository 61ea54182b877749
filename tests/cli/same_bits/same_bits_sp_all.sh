#!/usr/bin/env bash
# all
# same_bits_sp_all.sh - sequence parallelism: families x dtype x layouts, ZeRO stages, schedules, recompute,
# micro-batches, overlap: one rank's bits; and evaluation.
. "$(dirname "$0")/../lib/train_lib.bash"
text 3 60000 >"$TMP/text"
text 4 3000 >"$TMP/held"
steps=${SAME_BITS_STEPS:-3}

# what every family runs, then what one of each kind (gate, RMS norm, tied, bf16; GPT-2 in fp32) runs besides
few=("--tp 2" "--tp 8 --micro-batch 2" "--tp 2 --ranks 4 --zero 3 --micro-batch 1" \
    "--tp 4 --pp 2 --micro-batch 2 --recompute full"
    "--tp 2 --pp 2 --micro-batch 1 --recompute selective")
more=("--tp 4" "--tp 2 --threads 2" "--tp 2 --transport mpi" "--tp 4 --ranks 4 --ranks-per-node 2" \
    "--tp 2 --ranks 4 --ranks-per-node 2 --zero 1")
for zero in 0 1 2; do
    for overlap in on off; do
        more+=("--tp 2 --ranks 4 --zero $zero --overlap $overlap --micro-batch 2")
    done
done
for schedule in "gpipe --micro-batch 2" "1f1b --micro-batch 1" "naive --micro-batch 4" \
    "interleaved --virtual-stages 2 --micro-batch 2"; do
    more+=("--tp 2 --pp 2 --schedule $schedule" "--tp 2 --pp 2 --ranks 8 --zero 3 --schedule $schedule" \
        "--tp 2 --pp 2 --recompute full --schedule $schedule")
done
bubbles=("--tp 2 --pp 2 --schedule zero-bubble --micro-batch 1" \
    "--tp 2 --pp 2 --ranks 8 --zero 2 --schedule zero-bubble --micro-batch 2" \
        "--tp 4 --pp 2 --schedule zero-bubble --micro-batch 8 --recompute full"
    "--tp 2 --pp 2 --schedule zero-bubble --micro-batch 1 --recompute selective")

model() {                   # model FILE NAME: four layers
    case $2 in
    llama) config "$1" ;;
    tied) config "$1" tie_word_embeddings=true intermediate_size=100 ;;
    *) family "$1" "$2" ;;
    esac
    sed -i 's/"num_hidden_layers":2/"num_hidden_layers":4/; s/"n_layer":2/"n_layer":4/' "$1"
}

for name in llama tied llama-biases mistral qwen2 qwen3 gpt2; do
    model "$TMP/model.json" $name
    for dtype in fp32 bf16; do
        common=(--data "$TMP/text" --model "$TMP/model.json" --steps "$steps" --seq-len 64 --global-batch 8 \
            --threads 1 --dtype $dtype)
        reference
        layouts=("${few[@]}")
        case $name/$dtype in tied/bf16 | gpt2/fp32) layouts+=("${more[@]}") ;; esac
        case $name in tied | qwen3 | gpt2) layouts+=("${bubbles[@]}") ;; esac
        for layout in "${layouts[@]}"; do
            [ $name = tied ] && [[ $layout == *"--tp 8"* ]] && continue      # GRAIN 4
            read -r -a words <<<"$layout"
            same "$name in $dtype" --sp "${words[@]}"
        done
        [ $dtype = bf16 ] && [ $name != tied ] && continue
        # evaluation: the loss and every log-prob
        for layout in "" "--sp --tp 2" "--sp --tp 4 --pp 2 --micro-batch 3"; do
            read -r -a words <<<"$layout"
            run "$BIN/ptrain" --eval-only --init "$TMP/reference/step-$steps" --eval-data "$TMP/held" \
                --seq-len 64 --threads 1 "${words[@]}" --eval-logprobs "$TMP/eval$layout"
            claim "$name in $dtype: evaluation $layout has the same result" [ \
                "$rc$(md5sum <"$TMP/eval$layout")" = "0$(md5sum <"$TMP/eval")" ]
        done
    done
done

# one more batch: runs of three sequences, and a resumed run without --sp
model "$TMP/model.json" llama
common=(--data "$TMP/text" --model "$TMP/model.json" --steps 4 --seq-len 128 --global-batch 12 --threads 1)
reference
same "runs of three" --sp --tp 2 --ranks 4 --zero 2 --micro-batch 2
train half --sp --tp 4 --stop-after 2
claim "half a run" [ $rc = 0 ]
run "$BIN/ptrain" --data "$TMP/text" --out "$TMP/rest" --resume "$TMP/half/step-2" --threads 1
claim "resumed without --sp, it ends in the same state" [ "$(state_of "$out")" = "$ref_state" ]
finish
