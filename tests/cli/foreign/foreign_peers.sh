#!/usr/bin/env bash
# all
# foreign_peers.sh - what PyTorch and DeepSpeed themselves make of the folders that reshard writes for them:
# every bit, and their next step. PEER_PYTHON=python that has torch 2.15, safetensors and deepspeed 0.19.
here=$(cd "$(dirname "$0")" && pwd)
python=${PEER_PYTHON:-python3}
. "$here/../lib/megatron_lib.bash"
cd "$TMP" || exit 1

native=run/step-3
peers() {                   # RANKS KIND=WRITTEN…
    run "$python" -B "$here/foreign_peers.py" "$1" $native "${@:2}"
    local job
    for job in "${@:2}"; do
        claim "$job on $1 ranks" has "$out" "$job ok"
    done
}
has_modules() { "$python" -c "import $1" >/dev/null 2>&1; }
has_modules torch,safetensors || { skip "no torch and safetensors here: set PEER_PYTHON"; finish; }

for i in $(seq 100); do echo "line $i: $((i * i)) is the square of $i"; done >text
echo '{"model_type":"qwen2","hidden_size":24,"num_hidden_layers":2,"num_attention_heads":4,"num_key_value_heads":2,"intermediate_size":40,"vocab_size":256,"max_position_embeddings":64,"tie_word_embeddings":false}' >model.json
run ptrain --data text --model model.json --steps 5 --stop-after 3 --seq-len 15 --global-batch 4 --threads 1 \
    --out run
claim "a model is trained" [ $rc = 0 ] || finish
while read -r to options; do
    run reshard $options run/step-3 "$to"
    claim "$to: $options" [ $rc = 0 ]
done <<'TABLE'
d1 --format dcp
d2 --format dcp --tp 2 --dp 3 --zero 3
d3 --format dcp --tp 4 --pp 2 --dp 2 --zero 1
u --format deepspeed-universal
TABLE
peers 1 dcp-save=d1 dcp-save=d2 dcp-save=d3 dcp-plain=d1 dcp-plain=d3 dcp-flat=d2
peers 2 dcp-fsdp=d1 dcp-fsdp=d2
peers 3 dcp-fsdp=d3
if has_modules deepspeed; then
    peers 1 ds-1=u ds-2=u ds-3=u
    peers 2 ds-1=u ds-2=u ds-3=u
else
    skip "no deepspeed here: its engine is not asked"
fi

# experts, and latent attention with layers that differ
for family in mixtral deepseek_v3; do
    train_model $family
    native=$family/step-2
    run reshard --format dcp --tp 2 --ep 2 --dp 2 --zero 3 $native $family.d
    claim "$family as dcp" [ $rc = 0 ]
    run reshard --format deepspeed-universal $native $family.u
    claim "$family as deepspeed-universal" [ $rc = 0 ]
    peers 1 dcp-save=$family.d dcp-plain=$family.d
    peers 2 dcp-fsdp=$family.d
    has_modules deepspeed && peers 2 ds-2=$family.u ds-3=$family.u
done
finish
