#!/usr/bin/env bash
# quick
# volumes.sh - what a step sends, as comm/ counts it in a real run: all-reduce 2 (N-1)/N of the elements,
# reduce-scatter and all-gather (N-1)/N, ZeRO-3 one and a half times what data parallelism sends (less what is
# still there when backward asks again); and as planned.
. "$(dirname "$0")/../lib/train_lib.bash"
text 1 20000 >"$TMP/text"
H=128 L=8 F=256 V=256 T=32 G=8
config "$TMP/model.json" hidden_size=$H num_hidden_layers=$L num_key_value_heads=4 head_dim=16 \
    intermediate_size=$F vocab_size=$V
common=(--data "$TMP/text" --model "$TMP/model.json" --steps 2 --seq-len $T --global-batch $G --threads 1)
layer=$((2 * H * H + 2 * H * H / 2 + 3 * H * F + 2 * H)) embed=$((V * H))
total=$((L * layer + 2 * embed + H))

# sent RUN GROUP COLLECTIVE: bytes of the first step
sent() {
    grep '"communication"' "$TMP/$1.jsonl" |
        sed "s/.*\"$2\":{\([^}]*\)}.*/\1/; s/.*\"$3\":\[[0-9]*,\([0-9]*\),.*/\1/"
}
# within p %: padding
near() {
    awk -v a="${1:-0}" -v b="$2" -v p="${3:-1}" \
        'BEGIN { exit !(b > 0 && a >= b * (1 - p / 100) && a <= b * (1 + p / 100)) }'
}
nothing() { [ "${1:-x}" = 0 ]; }
# planned RUN WHAT: bytes of --dry-run
planned() {
    sed -n "s/^$2  *\([0-9.]*\) \([kMG]*B\) a rank and step.*/\1 \2/p" "$TMP/$1.plan" |
        awk '{ print $1 * ($2 ~ /G/ ? 1e9 : $2 ~ /M/ ? 1e6 : $2 ~ /k/ ? 1e3 : 1) }'
}
both() {
    local name=$1; shift; "$BIN/ptrain" "${common[@]}" "$@" --dry-run >"$TMP/$name.plan"
    train "$name" "$@"; claim "$* runs" [ $rc = 0 ]
}

for case in ${VOLUMES:-2/fp32/off 2/bf16/on 4/fp32/on 4/bf16/off}; do
    IFS=/ read -r N dtype overlap <<<"$case"
    [ $dtype = fp32 ] && w=4 || w=2
    for zero in 0 1 2 3; do
        run=z$zero what="dp $N zero $zero $dtype overlap $overlap"
        both $run --ranks $N --zero $zero --dtype $dtype --overlap $overlap
        scatter=$((4 * total * (N - 1) / N)) gather=$((w * total * (N - 1) / N))
        case $zero in
        0)
            claim "$what: all-reduce is 2 (N-1)/N" near "$(sent $run dp all_reduce)" $((2 * scatter))
            claim "$what: nothing else" nothing \
                "$(($(sent $run dp reduce_scatter) + $(sent $run dp all_gather)))"
            ;;
        1 | 2)
            claim "$what: reduce-scatter is (N-1)/N" near "$(sent $run dp reduce_scatter)" $scatter
            claim "$what: all-gather is (N-1)/N" near "$(sent $run dp all_gather)" $gather
            ;;
        3)
            # the head and two layers are still there, the embedding is not needed
            again=$((w * (L - 2) * layer * (N - 1) / N))
            claim "$what: reduce-scatter is (N-1)/N" near "$(sent $run dp reduce_scatter)" $scatter
            claim "$what: gathered forward, and again backward" near "$(sent $run dp all_gather)" \
                $((gather + again))
            ;;
        esac
        claim "$what: sums as planned" near \
            "$(($(sent $run dp all_reduce) + $(sent $run dp reduce_scatter)))" "$(planned $run "dp sums")"
        [ $zero = 3 ] || [ $zero = 0 ] ||
            claim "$what: gathers as planned" near "$(sent $run dp all_gather)" "$(planned $run "dp gathers")"
        [ $zero = 3 ] &&
            claim "$what: gathers at most as planned" awk -v a="$(sent $run dp all_gather)" -v \
                b="$(planned $run "dp gathers")" 'BEGIN { exit !(a > b * 0.7 && a <= b * 1.01) }'
    done
    if [ $dtype = fp32 ]; then
        all=$(($(sent z3 dp reduce_scatter) + $(sent z3 dp all_gather) + w * ((2 * layer + 2 * embed) * (N - \
            1) / N)))
        claim "dp $N: ZeRO-3, with what was still there, is 1.5 times data parallelism" near $((2 * all)) \
            $((3 * 2 * 4 * total * (N - 1) / N))
    fi
done

both tp --tp 2
claim "tp 2: sums as planned" near "$(sent tp tp all_reduce)" "$(planned tp "tp sums")" 2
for dtype in fp32 bf16; do
    # a layer: two sums forward, two back, as reduce-scatters; gathered: two norms, again for their weights'
    # gradients, and two of the residual's
    [ $dtype = fp32 ] && w=4 || w=2
    both sp --tp 2 --sp --dtype $dtype
    claim "sp $dtype: reduce-scatters are (N-1)/N" [ "$(sent sp tp reduce_scatter)" = \
        $((4 * H * T * G * (4 * L + 2) / 2)) ]
    claim "sp $dtype: all-gathers are (N-1)/N" [ "$(sent sp tp all_gather)" = \
        $((w * H * T * G * (6 * L + 3) / 2)) ]
    claim "sp $dtype: all-reduces are the norms' leaves and the statistics of the loss" [ \
        "$(sent sp tp all_reduce)" = $((4 * H * G * (2 * L + 1) + 4 * T * G * 3)) ]
    claim "sp $dtype: sums as planned" near "$(($(sent sp tp all_reduce) + $(sent sp tp reduce_scatter)))" \
        "$(planned sp "tp sums")"
    claim "sp $dtype: gathers as planned" near "$(sent sp tp all_gather)" "$(planned sp "tp gathers")"
done
both again --tp 2 --sp --recompute full
claim "sp, layers computed again: gathers as planned" near "$(sent again tp all_gather)" \
    "$(planned again "tp gathers")"

# cp: keys and values once a layer forward, again where forward is; their gradients in fp32, kv head by kv head
kv=$((2 * 4 * 16 * L))
long=(--seq-len 256 --cp-grain 2 --global-batch 2 --micro-batch 1)
for dtype in fp32 bf16; do
    [ $dtype = fp32 ] && w=4 || w=2
    both cp --cp 2 "${long[@]}" --dtype $dtype
    claim "cp 2 $dtype: gathered are (N-1)/N of keys and values" [ "$(sent cp cp all_gather)" = $((w * kv * 256)) ]
    claim "cp 2 $dtype: gathers as planned" near "$(sent cp cp all_gather)" "$(planned cp "cp gathers")"
    claim "cp 2 $dtype: summed are (N-1)/N of their gradients" [ "$(sent cp cp reduce_scatter)" = $((4 * kv * 256)) ]
    claim "cp 2 $dtype: sums as planned" near "$(sent cp cp reduce_scatter)" "$(planned cp "cp sums")"
done
both cp --cp 2 "${long[@]}" --recompute full
claim "cp 2, layers computed again: gathers as planned" near "$(sent cp cp all_gather)" \
    "$(planned cp "cp gathers")"
both pp --pp 2 --micro-batch 2
claim "pp 2: messages as planned" near "$(($(sent pp pp send) + $(sent pp pp_back send)))" \
    "$(planned pp "pp messages")"
claim "pp 2, four micro-batches: the schedule waits (P-1)/(M+P-1), as --dry-run says" eval \
    'grep -q "\"event\":\"pipeline\".*\"bubble\":0[.0-9]*,\"bubble_planned\":0.2[,}]" "$TMP/pp.jsonl" && grep -q "^bubble *0.2$" "$TMP/pp.plan"'
finish
