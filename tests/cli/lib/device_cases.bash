# device_cases.bash - programs with --device cuda, against the bits of --device cpu. $device: fake or cuda.
# Used by fake_device.sh and cuda_device.sh.
. "$(dirname "${BASH_SOURCE[0]}")/train_lib.bash"
library=                                   # for SHARDLINE_DEVICE
[ "$device" = cuda ] || library=$fake_device
text 1 60000 >"$TMP/text"

# here WHAT ARGS…: the same bits on the device
here() { SHARDLINE_DEVICE=$library same "$device device: $1" --device cuda "${@:2}"; }

config "$TMP/gqa.json"
common=(--data "$TMP/text" --model "$TMP/gqa.json" --steps 3 --seq-len 63 --global-batch 8 --threads 1)
reference
here "one rank"
here "kv heads replicated, vocabulary split, ZeRO-3 with its counter" --tp 4 --ranks 8 --zero 3 \
    --micro-batch 1
claim "ranks of one machine are said to be on one, whoever shares a GPU" eval \
    '[[ $err != *"spans machines"* ]]'
here "pipeline with recomputed layers, ZeRO-1" --pp 2 --ranks 4 --zero 1 --micro-batch 2 --recompute full
here "ZeRO-2, saved in the background" --ranks 2 --zero 2 --save-async --save-every 1
here "deferred gradients" --pp 2 --micro-batch 2 --schedule zero-bubble
here "samples and evaluation" --eval-data "$TMP/text" --eval-every 2 --sample-every 2
if [ "$device" = fake ]; then              # not tried on a GPU yet
    family "$TMP/model.json" mixtral
    common=(--data "$TMP/text" --model "$TMP/model.json" --steps 3 --seq-len 33 --global-batch 4 --threads 1 \
        --balance global --balance-rate 0.3)
    reference
    here "counts of experts" --micro-batch 2
    family "$TMP/model.json" deepseek_plain
    common=(--data "$TMP/text" --model "$TMP/model.json" --steps 3 --seq-len 33 --global-batch 4 --threads 1 \
        --balance bias --balance-rate 0.1)
    reference
    here "correction biases" --ranks 2
fi
export SHARDLINE_CUDA=simt                 # bf16 on tensor cores has bits of its own
for name in gpt2 qwen3; do
    family "$TMP/model.json" $name
    common=(--data "$TMP/text" --model "$TMP/model.json" --steps 2 --seq-len 63 --global-batch 8 --threads 1 \
        --dtype bf16)
    reference
    here "$name in bf16" --tp 8
done
train half --stop-after 1 --tp 2
export SHARDLINE_DEVICE=$library
run "$BIN/ptrain" --data "$TMP/text" --out "$TMP/rest" --resume "$TMP/half/step-1" --threads 1 --device cuda
claim "$device device: resumed, it ends in the same state" [ "$(state_of "$out")" = "$ref_state" ]

run ptrain --eval-only --init "$TMP/reference/step-2" --data "$TMP/text" --eval-data "$TMP/text" --seq-len \
    60 --device cpu
cpu=$out
run ptrain --eval-only --init "$TMP/reference/step-2" --data "$TMP/text" --eval-data "$TMP/text" --seq-len \
    60 --device cuda --tp 2
claim "$device device: evaluation says what the CPU says" [ "$rc$out" = "0$cpu" ]

run ptrain --device cpu --data "$TMP/text" --out "$TMP/bytes" --model tiny --steps 1 --seq-len 64 \
    --global-batch 2 --threads 1
for ask in "--temperature 1 --seed 3" "--prefill-chunk 7 --temperature 0"; do
    run pserve "$TMP/bytes/step-1" --once "the model of the token" --max-tokens 9 $ask
    cpu=$out
    run pserve "$TMP/bytes/step-1" --once "the model of the token" --max-tokens 9 $ask --device cuda --tp 2
    claim "$device device: pserve $ask says what it says on the CPU" [ "$rc$out" = "0$cpu" ]
done
# of memory that is known: pages for keys are counted by the GPU's, which ranks may share
if [ "$device" = fake ]; then
    export SHARDLINE_FAKE_ROOM=60000000
    pages() {
        SHARDLINE_FAKE_GPUS=$1 run pserve "$TMP/bytes/step-1" --once a --max-tokens 1 --device cuda \
            --verbose --tp "$2"; sed -n 's/.* \([0-9]*\) pages of.*/\1/p' "$TMP/.err"
    }
    one=$(pages 1 1) two=$(pages 1 2) apart=$(pages 2 2)
    claim "pages fit the GPU's memory" [ "${one:-0}" -gt 0 -a $((${one:-0} * 196608)) -lt 56000000 ]
    claim "two ranks that share a GPU have fewer: each has a step's buffers" [ "${two:-0}" -gt 0 -a \
        "${two:-0}" -lt "${one:-0}" ]
    claim "two GPUs have room for twice as many and the weights once" [ "${apart:-0}" -gt $((2 * ${one:-0})) ]
    SHARDLINE_FAKE_ROOM=1000000 run pserve "$TMP/bytes/step-1" --once a --max-tokens 1 --device cuda
    claim "a GPU that is too small is refused" [ $rc = 1 ]
    claim "in words" has "$err" "the weights leave no memory"
    unset SHARDLINE_FAKE_ROOM
fi
unset SHARDLINE_DEVICE SHARDLINE_CUDA
finish
