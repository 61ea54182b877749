#!/usr/bin/env bash
# all
# foreign_written_all.sh - foreign_written.sh for every family; and what PyTorch and DeepSpeed themselves make of the folders. $PEER_PYTHON (else python3):
# one that has torch 2.15, safetensors and deepspeed 0.19.
here=$(cd "$(dirname "$0")" && pwd)
python=${PEER_PYTHON:-python3}
mkdir "$TMP/peers" && cd "$TMP/peers" || exit 1
. "$here/lib.bash"

peers() {                   # RANKS KIND SRC…
    local ranks=$1 kind=$2 native=$3 written=$4
    run "$python" -B "$here/foreign_peers.py" "$kind" "$ranks" "$native" "$written"
    claim "$written, loaded by $kind on $ranks ranks: every bit, and the next step" [ "$rc$out" = 0ok ]
}
has_module() { "$python" -c "import $1" 2>/dev/null; }

for i in $(seq 100); do echo "line $i: $((i * i)) is the square of $i"; done >text
echo '{"model_type":"qwen2","hidden_size":24,"num_hidden_layers":2,"num_attention_heads":4,"num_key_value_heads":2,"intermediate_size":40,"vocab_size":256,"max_position_embeddings":64,"tie_word_embeddings":false}' >model.json
run ptrain --data text --model model.json --steps 5 --stop-after 3 --seq-len 15 --global-batch 4 --threads 1 --out run
claim "a model is trained" [ $rc = 0 ]
for to in "dcp d1" "dcp d2 --tp 2 --dp 3 --zero 3" "dcp d3 --tp 4 --pp 2 --dp 2 --zero 1" "deepspeed-universal u"; do
    set -- $to
    run reshard --format "$1" "${@:3}" run/step-3 "$2"
    claim "$to" [ $rc = 0 ]
done
if has_module torch,safetensors; then
    for d in d1 d2 d3; do
        peers 1 dcp-save run/step-3 $d
        peers 1 dcp-plain run/step-3 $d
    done
    peers 1 dcp-flat run/step-3 d2
    peers 2 dcp-fsdp run/step-3 d1
    peers 3 dcp-fsdp run/step-3 d2
else
    skip "no torch and safetensors here: nothing of PyTorch's is asked"
fi
if has_module torch,safetensors,deepspeed; then
    for stage in 1 2 3; do
        peers 1 ds-$stage run/step-3 u
        peers 2 ds-$stage run/step-3 u
    done
else
    skip "no deepspeed here: its engine is not asked"
fi
rm -rf "$TMP/peers"
export ALL=1
. "$here/foreign_written.sh"
