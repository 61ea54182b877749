#!/usr/bin/env bash
# quick long
# same_bits_families.sh - the same bits at every layout for the families besides Llama: what each has more is
# on each path once.
. "$(dirname "$0")/../lib/train_lib.bash"
text 2 60000 >"$TMP/text"
steps=${SAME_BITS_STEPS:-6}

for name in llama-biases mistral qwen2 qwen3 gpt2 gemma2 gemma3 neox; do
    family "$TMP/model.json" $name
    common=(--data "$TMP/text" --model "$TMP/model.json" --steps "$steps" --seq-len 63 --global-batch 8 \
        --threads 1)
    reference
    same "$name: tp 8, one head a rank, kv heads replicated" --tp 8
    same "$name: ZeRO-3, one sequence at a time" --ranks 4 --zero 3 --micro-batch 1
    case $name in qwen3 | gpt2 | gemma2 | neox)
        same "$name: tp 2, micro-batches" --tp 2 --micro-batch 2
        same "$name: ZeRO-2, one buffer for all units" --ranks 2 --zero 2
        same "$name: late weight gradients of layers computed again" --pp 2 --tp 2 --ranks 4 --micro-batch 2 \
            --schedule zero-bubble --recompute full
        same "$name: norms and activations computed again, two threads" --recompute selective --threads 2
        ;;
    esac
    common+=(--dtype bf16)
    reference
    same "$name in bf16: tp 4 x dp 2, ZeRO-1" --tp 4 --ranks 8 --zero 1 --micro-batch 1
    portable "$name in bf16: portable C" --tp 2
done

# a resumed run, and one that starts from a Hugging Face folder: what was saved is what was there
for name in gpt2 qwen3 gemma3 neox; do
    family "$TMP/model.json" $name
    common=(--data "$TMP/text" --model "$TMP/model.json" --steps "$steps" --seq-len 63 --global-batch 8 \
        --threads 1)
    reference
    rm -rf "$TMP/rest"
    train half --stop-after $((steps / 2)) --tp 2 --ranks 4 --zero 1
    claim "$name: half a run" [ $rc = 0 ]
    run "$BIN/ptrain" --data "$TMP/text" --out "$TMP/rest" --resume "$TMP/half/step-$((steps / 2))" \
        --threads 1
    claim "$name: resumed on one rank, it ends in the same state" [ "$(state_of "$out")" = "$ref_state" ]
    run reshard --format hf --weights-only "$TMP/reference/step-$steps" "$TMP/hf-$name"
    run reshard --tp 4 --weights-only "$TMP/reference/step-$steps" "$TMP/tp4-$name"
    run reshard diff "$TMP/hf-$name" "$TMP/tp4-$name"
    claim "$name: the folder of one rank holds tensors whole, as a cut one does" [ "$rc$out" = 0 ]
done
finish
