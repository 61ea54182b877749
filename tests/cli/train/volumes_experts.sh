#!/usr/bin/env bash
# quick
# volumes_experts.sh - the bytes that the ranks of an expert group exchange in a real run. Routers are forced,
# so that the rows which leave rank 0 are known: a row goes out with its weight and its result comes back,
# forward; backward its gradient goes out, the input's comes back with the weight's. Where experts are evenly
# loaded --dry-run plans the same.
here=$(cd "$(dirname "$0")" && pwd)
. "$here/../lib/train_lib.bash"
command -v python3 >/dev/null || { skip "no python3"; finish; }
text 1 20000 >"$TMP/text"
H=40 T=32 G=8 L=2
sizes="\"hidden_size\":$H,\"num_hidden_layers\":$L,\"num_attention_heads\":4,\"num_key_value_heads\":2,\"head_dim\":10,\"intermediate_size\":56,\"vocab_size\":256,\"max_position_embeddings\":256"

# start NAME EXPERTS CHOSEN [CASE]: $TMP/NAME, weights whose routers choose what CASE of experts_forced.py
# says
start() {
    rm -rf "$TMP/model"
    echo "{\"model_type\":\"mixtral\",$sizes,\"num_local_experts\":$2,\"num_experts_per_tok\":$3}" \
        >"$TMP/model.json"
    run ptrain --data "$TMP/text" --model "$TMP/model.json" --steps 1 --lr 0 --seq-len $T --global-batch 1 \
        --out "$TMP/model"
    run reshard --format hf "$TMP/model/step-1" "$TMP/$1"
    [ -z "${4:-}" ] || run python3 -B "$here/../experts/experts_forced.py" "$TMP/$1" "$4"
    claim "$1: the weights are made" [ $rc = 0 ] || finish
}
start even 8 8
start first 6 2 zero
start last 6 1 last_takes_all

# exchanged START ARGS...: $sent, the bytes of rank 0 in the first step, and $plan, those of --dry-run
exchanged() {
    common=(--data "$TMP/text" --init "$TMP/$1" --steps 1 --lr 0 --seq-len $T --global-batch $G --threads 1 \
        --expert-buffer 100 "${@:2}")
    plan=$("$BIN/ptrain" "${common[@]}" --dry-run |
        sed -n 's/^ep exchange  *\([0-9.]*\) \([kM]*B\) .*/\1 \2/p' |
            awk '{ print $1 * ($2 == "MB" ? 1e6 : $2 == "kB" ? 1e3 : 1) }')
    train one
    claim "$*: runs" [ $rc = 0 ]
    sent=$(sed -n 's/.*"event":"communication".*"ep":{[^}]*"all_to_all":\[[0-9]*,\([0-9]*\),.*/\1/p' \
        "$TMP/one.jsonl")
}
# the plan is printed with three digits
near() { awk -v a="${1:-0}" -v b="$2" 'BEGIN { exit !(b > 0 && a >= 0.99 * b && a <= 1.01 * b) }'; }

for dtype in fp32 bf16; do
    [ $dtype = fp32 ] && w=4 || w=2
    # of a row: what its rank sends, what its expert's rank sends
    there=$((2 * H * w + 4)) back=$((2 * H * w + 4))
    for ep in 2 4; do
        rows=$((T * G / ep * L))                                # of a rank, in all layers
        exchanged even --ranks $ep --ep $ep --dtype $dtype
        claim "ep $ep $dtype, every expert chosen: each rank sends all rows to all others and answers theirs" [ "$sent" = $((rows * 8 * (ep - 1) / ep * (there + back))) ]
        claim "ep $ep $dtype, every expert chosen: as planned" near "$sent" "$plan"
        exchanged first --ranks $ep --ep $ep --dtype $dtype --micro-batch 1
        claim "ep $ep $dtype, experts 0 and 1 of 6 chosen: rank 0 answers all others' rows" [ "$sent" = \
            $((rows * 2 * (ep - 1) * back)) ]
        exchanged last --ranks $ep --ep $ep --dtype $dtype
        claim "ep $ep $dtype, the last expert chosen: all rows of rank 0 leave" [ "$sent" = \
            $((rows * there)) ]
    done
done
# room for two sequences: rank 0's four go in two rounds, of which forward keeps one
exchanged last --ranks 2 --ep 2 --expert-buffer 0.5
claim "four rounds: the rows of one of two come again backward, with their weights" [ "$sent" = \
    $((T * G / 2 * L * (2 * H * 4 + 4) + T * 2 * L * (H * 4 + 4))) ]
claim "and are counted" grep -q '"expert_rounds":\[4,4\]' "$TMP/one.jsonl"
exchanged even --tp 2 --ep 4 --ranks 4
claim "tp 2: a rank sends its share of every sequence alone" [ "$sent" = \
    $((T * G / 4 * L * 8 * 3 / 4 * 2 * (2 * H * 4 + 4))) ]
claim "tp 2: as planned" near "$sent" "$plan"
exchanged even --ranks 2 --ep 2 --recompute full
claim "layers computed again: as planned" near "$sent" "$plan"
exchanged even --ranks 4 --ep 2
claim "an expert group over half of the dp ranks: as planned" near "$sent" "$plan"
T=256
exchanged even --cp 2 --cp-grain 2 --ep 4 --ranks 4 --seq-len $T
claim "cp 2: a rank sends its leaves of every sequence" [ "$sent" = $((T * G / 4 * L * 8 * 3 / 4 * 2 * (2 * H * 4 + 4))) ]
claim "cp 2: as planned" near "$sent" "$plan"
finish
