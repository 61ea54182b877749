#!/usr/bin/env bash
# quick
# same_bits_offload.sh - masters and moments in files: the same bits as in memory at every ZeRO stage, tp, pp and
# ep, where gradients are clipped and where they are not; resumed with and without; on a device beside the host.
# OFFLOAD=all: more layouts, families and both dtypes.
. "$(dirname "$0")/../lib/train_lib.bash"
every=${OFFLOAD:+yes}
text 7 30000 >"$TMP/text"
disk=(--offload "$TMP/disk")

# offloaded LAYOUT...: each has the bits of one rank that keeps all in memory, and leaves no file
offloaded() {
    local layout words
    reference
    for layout in "$@"; do
        read -r -a words <<<"$layout"
        same "offloaded" "${words[@]}" "${disk[@]}"
        claim "offloaded ($layout): no file is left" [ -z "$(ls -A "$TMP/disk")" ]
    done
}

config "$TMP/model.json" vocab_size=257
common=(--data "$TMP/text" --model "$TMP/model.json" --steps 4 --seq-len 33 --global-batch 4 --threads 1 \
    --dtype bf16)
offloaded "--ranks 2 --zero 1" "--tp 2 --pp 2 --micro-batch 1" ${every:+""} ${every:+"--ranks 2 --zero 3 --micro-batch 1"} \
    ${every:+"--ranks 2" "--ranks 4 --zero 2 --micro-batch 1" "--ranks 4 --zero 3 --tp 2" "--ranks 4 --zero 1 --pp 2"} \
    ${every:+"--pp 2 --schedule zero-bubble --micro-batch 1" "--pp 2 --schedule gpipe --micro-batch 2"} \
    ${every:+"--ranks 2 --zero 2 --overlap off" "--recompute full" "--micro-batch 1" "--ranks 4 --transport mpi --zero 3"}
common+=(--clip 100)
offloaded "--ranks 2 --zero 2" ${every:+"" "--ranks 4 --zero 3" "--tp 2 --ranks 4 --zero 1 --overlap off"}

common=(--data "$TMP/text" --model "$TMP/model.json" --steps 4 --seq-len 33 --global-batch 4 --threads 1 --clip 100)
offloaded "--ranks 2 --zero 3" ${every:+"" "--ranks 2" "--ranks 2 --zero 1 --micro-batch 1" "--tp 2 --pp 2 --ranks 4"}

# gradients and weights too
more=(--offload-grads --offload-params)
same "all in files" --ranks 2 --zero 3 --micro-batch 1 "${disk[@]}" "${more[@]}"
[ "$every" ] && same "gradients in files" --zero 2 --micro-batch 1 "${disk[@]}" --offload-grads
[ "$every" ] && for layout in "--zero 3" "--ranks 2 --zero 3" "--zero 3 --recompute full" "--ranks 4 --zero 3 --tp 2" \
    "--ranks 4 --zero 3 --pp 2 --micro-batch 1" "--zero 3 --pp 2 --schedule zero-bubble --micro-batch 1"; do
    read -r -a words <<<"$layout"
    same "weights in files" "${words[@]}" "${disk[@]}" --offload-params
    same "gradients in files" "${words[@]}" "${disk[@]}" --offload-grads
    same "all in files" "${words[@]}" "${disk[@]}" "${more[@]}"
done

# inputs of layers that are computed again
config "$TMP/model.json" vocab_size=257 num_hidden_layers=5
reference
again=(--recompute full --offload-activations)
same "activations in files" "${disk[@]}" "${again[@]}" --pp 2 --micro-batch 1 --schedule zero-bubble
[ "$every" ] && for layout in "" "--micro-batch 1" "--pp 2 --micro-batch 1 --schedule interleaved --virtual-stages 2" \
    "--pp 2 --micro-batch 1 --schedule gpipe" "--tp 2 --sp --ranks 4 --seq-len 32" "--ranks 2 --zero 3 --offload-grads --offload-params"; do
    read -r -a words <<<"$layout"
    [ "${layout/sp}" = "$layout" ] || reference --seq-len 32
    same "activations in files" "${words[@]}" "${disk[@]}" "${again[@]}"
    [ "${layout/sp}" = "$layout" ] || reference
done
config "$TMP/model.json" vocab_size=257
reference

# into files and out of them again
train resumed --stop-after 2 --offload "$TMP/disk" --ranks 2 --zero 1
run timeout -k 10 100 "$BIN/ptrain" "${common[@]}" --out "$TMP/resumed" --resume auto --stop-after 3
claim "a run goes on without offload" [ $rc = 0 ]
run timeout -k 10 100 "$BIN/ptrain" "${common[@]}" --out "$TMP/resumed" --resume auto --offload "$TMP/disk" --ranks 2 --zero 3 "${more[@]}"
claim "and with it again" [ $rc = 0 ]
claim "to the same state" [ "$(state_of "$out")" = "$ref_state" ]

family "$TMP/model.json" mixtral
offloaded "--ranks 2 --ep 2 --zero 3 --offload-grads --offload-params" ${every:+"--ranks 2 --ep 2 --zero 1"} ${every:+"--ranks 4 --ep 2 --tp 2 --zero 3" "--tp 2"}

# sequences divided among ranks
if [ "$every" ]; then
    config "$TMP/model.json" vocab_size=257 tie_word_embeddings=true
    text 8 90000 >"$TMP/long"
    common=(--data "$TMP/long" --model "$TMP/model.json" --steps 3 --seq-len 256 --cp-grain 2 --global-batch 4 --threads 1)
    offloaded "--cp 2 --zero 3 --offload-grads --offload-params" "--cp 2 --ranks 4 --zero 1 --micro-batch 1" \
        "--cp 2 --ranks 4 --zero 2 --offload-grads --micro-batch 1"
    common=(--data "$TMP/text" --model "$TMP/model.json" --steps 4 --seq-len 33 --global-batch 4 --threads 1 --clip 100)
fi

# beside a device's memory: in the host's, and in files
family "$TMP/model.json" qwen2
[ "$every" ] && offloaded "--ranks 2 --zero 2" || reference
same "a tied embedding" --zero 3 --micro-batch 1 "${disk[@]}" "${more[@]}"
[ "$every" ] && same "slices without a parameter" --ranks 4 --zero 1 "${disk[@]}"
same "a tied embedding on two stages" --pp 2 --zero 3 --micro-batch 1 "${disk[@]}" --offload-grads
export SHARDLINE_DEVICE=$fake_device
[ "$every" ] && same "in the host's memory" --device cuda --offload cpu
same "in the host's memory, with slices" --device cuda --offload cpu --ranks 2 --zero 3
[ "$every" ] && same "activations beside a device" --device cuda --offload "$TMP/disk" --offload-activations --recompute full
same "in files beside a device" --device cuda --offload "$TMP/disk" ${every:+--ranks 2 --zero 1}
unset SHARDLINE_DEVICE

if [ "$every" ]; then
    for name in gpt2 neox gemma2 gpt_oss deepseek_v3; do
        family "$TMP/model.json" $name
        for dtype in fp32 bf16; do
            common=(--data "$TMP/text" --model "$TMP/model.json" --steps 3 --seq-len 33 --global-batch 4 --threads 1 \
                --dtype $dtype)
            offloaded "" "--tp 2 --ranks 4 --zero 1" "--ranks 2 --zero 3" \
                "--ranks 2 --zero 3 --offload-grads --offload-params --micro-batch 1"
        done
    done
fi
finish
