#!/usr/bin/env bash
# quick long
# memory.sh - what every rank holds, by category, from the tracked allocator: ZeRO cuts optimizer, gradients,
# weights to 1/dp, tp cuts weights and KV; what is left are the named buffers. And the bytes that a rank reads
# when it starts.
. "$(dirname "$0")/../lib/train_lib.bash"
text 1 20000 >"$TMP/text"
H=512 L=3 F=1024 V=256
config "$TMP/model.json" hidden_size=$H num_hidden_layers=$L num_key_value_heads=4 head_dim=64 \
    intermediate_size=$F vocab_size=$V
common=(--data "$TMP/text" --model "$TMP/model.json" --steps 1 --seq-len 16 --global-batch 4 --threads 1)
# elements: a layer; embedding, head and last norm
layer=$((2 * H * H + 2 * H * H / 2 + 3 * H * F + 2 * H)) ends=$((2 * V * H + H))
largest=$((layer > V * H + H ? layer : V * H + H))
total=$((L * layer + ends))

# held LOG RANK CATEGORY [WHICH]: bytes now (1, the default) or at the peak (2), at the end of the run
held() {
    grep '"when":"end"' "$TMP/$1.jsonl" | tr '{' '\n' | grep "\"rank\":$2," |
        sed "s/.*\"$3\":\[\([0-9]*\),\([0-9]*\)\].*/\\${4:-1}/"
}
read_by() {
    grep '"when":"end"' "$TMP/$1.jsonl" | tr '{' '\n' |
        sed -n "s/.*\"rank\":$2,\"bytes_read\":\([0-9]*\).*/\1/p"
}
# within p %
near() {
    awk -v a="${1:-0}" -v b="$2" -v p="${3:-2}" \
        'BEGIN { exit !(b > 0 && a >= b * (1 - p / 100) && a <= b * (1 + p / 100)) }'
}
at_most() { awk -v a="${1:-x}" -v b="$2" 'BEGIN { exit !(a ~ /^[0-9]+$/ && a > 0 && a <= b) }'; }

# ---- ZeRO over dp 4: fp32, and bf16 with masters ----
for dtype in fp32 bf16; do
    [ $dtype = fp32 ] && { w=4 states=8; } || { w=2 states=12; }
    for zero in 0 1 2 3; do
        train $dtype$zero --ranks 4 --zero $zero --dtype $dtype
        claim "$dtype zero $zero runs" [ $rc = 0 ]
        for rank in 0 1 2 3; do
            what="$dtype zero $zero rank $rank"
            part=$([ $zero = 0 ] && echo 1 || echo 4)
            claim "$what: optimizer state" near "$(held $dtype$zero $rank optim)" $((states * total / part))
            # zero 2, 3: its slices and the two buffers in which units are summed in turn
            grads=$([ $zero -lt 2 ] && echo $((4 * total)) || echo $((4 * total / 4 + 2 * 4 * largest)))
            claim "$what: gradients" near "$(held $dtype$zero $rank grads)" $grads
            # natural and packed order, what all ranks have alike once a machine; zero 3: its slices, two
            # slots for layers, one for the ends
            case $zero in
            0) weights=$((w * total + w * (total - V * H) / 4)) ;;
            1 | 2) weights=$((w * (2 * total - V * H) / 4)) ;;
            3) weights=$((w * total / 4 + w * (4 * layer + 2 * (V * H + H)) / 4)) ;;
            esac
            claim "$what: weights" near "$(held $dtype$zero $rank params)" $weights
            claim "$what: nothing else grew at the peak" [ \
                "$(held $dtype$zero $rank optim 2)/$(held $dtype$zero $rank grads 2)/$(held $dtype$zero \
                    $rank params 2)" = \
                "$(held $dtype$zero $rank optim)/$(held $dtype$zero $rank grads)/$(held $dtype$zero $rank \
                    params)" ]
        done
    done
done

# ---- without overlap one buffer does ----
train off --ranks 4 --zero 2 --overlap off
claim "without overlap: gradients" near "$(held off 0 grads)" $((4 * total / 4 + 4 * largest))

# ---- the plan is what is held ----
# planned LAYOUT...: bytes of a category as --dry-run prints them
planned() {
    sed -n "s/^$1 *\([0-9.]*\) \([kMG]*B\) a rank.*/\1 \2/p" <<<"$plan" |
        awk '{ print $1 * ($2 ~ /G/ ? 1e9 : $2 ~ /M/ ? 1e6 : $2 ~ /k/ ? 1e3 : 1) }'
}
train nodes --ranks 4 --zero 3 --ranks-per-node 2
while read -r name layout; do
    read -r -a words <<<"$layout"
    plan=$("$BIN/ptrain" "${common[@]}" "${words[@]}" --dry-run)
    for cat in params grads optim; do
        claim "$layout: $cat as planned" near "$(held $name 0 $cat)" "$(planned $cat)" 1
    done
    claim "$layout: the peak of all as planned" near "$(held $name 0 total 2)" "$(planned memory)" 5
done <<'TABLE'
fp320 --ranks 4 --zero 0
fp321 --ranks 4 --zero 1
off   --ranks 4 --zero 2 --overlap off
fp323 --ranks 4 --zero 3
bf163 --ranks 4 --zero 3 --dtype bf16
nodes --ranks 4 --zero 3 --ranks-per-node 2
TABLE

# ---- ZeRO-3 over 8: an eighth of the whole, two units, the buffers in which units are summed ----
train eight --ranks 8 --zero 3 --global-batch 8
for ((rank = 0; rank < 8; rank++)); do
    sum=$(($(held eight $rank params 2) + $(held eight $rank grads 2) + $(held eight $rank optim 2)))
    claim "ZeRO-3 on 8 ranks, rank $rank: an eighth, two units, the tree's buffers" at_most $sum \
        $((16 * total / 8 + 2 * 4 * largest + 2 * 4 * largest))
done

# ---- sequence parallel: half of what is kept of norms and residuals, at tp 2; as planned ----
common+=(--recompute full)
train tp --tp 2 --seq-len 128
train sp --tp 2 --seq-len 128 --sp
plan=$("$BIN/ptrain" "${common[@]}" --tp 2 --seq-len 128 --sp --dry-run)
# inputs of layers; of one layer h1, h2, xm; x_last, hf, dx
saved=$((4 * 4 * 128 * H / 2 * (L + 6)))
for rank in 0 1; do
    claim "sp rank $rank: activations are less" near \
        "$(($(held tp $rank acts 2) - $(held sp $rank acts 2)))" $saved
    claim "sp rank $rank: activations as planned" near "$(held sp $rank acts 2)" "$(planned acts)" 1
done
common=("${common[@]:0:${#common[@]}-2}")

# ---- tp: training ----
train whole
for tp in 2 4; do
    train tp --tp $tp
    for ((rank = 0; rank < tp; rank++)); do
        for cat in params grads optim; do
            claim "tp $tp rank $rank: $cat are 1/$tp" near "$(held tp $rank $cat)" \
                $(($(held whole 0 $cat) / tp))
        done
    done
done
mv "$TMP/tp" "$TMP/tp4"

# ---- tp: serving, from Hugging Face files (read to the byte) and from a native checkpoint (whole blocks of 1
# MiB, each with its checksum) ---- Norms are stored once: ranks other than 0 read theirs in blocks of rank
# 0's file, a few whatever the size of the model.
block=$((1 << 20))
run reshard --format hf "$TMP/whole/step-1" "$TMP/hf"
claim "the checkpoint as a Hugging Face folder" [ $rc = 0 ]
export SHARDLINE_MAP=off # mapped weights are not memory of a rank
for from in hf tp4/step-1; do
    for tp in 1 2 4; do
        run timeout -k 10 100 "$BIN/pserve" "$TMP/$from" --tp $tp --ctx 256 --max-batch 4 --verbose --once a \
            --max-tokens 1
        claim "serving $from at tp $tp ends well" [ $rc = 0 ]
        for ((rank = 0; rank < tp; rank++)); do
            read -r weights kv bytes < \
                <(sed -n "s/.*rank $rank: weights \([0-9]*\) bytes, kv \([0-9]*\) bytes, read \([0-9]*\) bytes.*/\1 \2 \3/p" "$TMP/.err")
            [ $tp = 1 ] && { weights1=$weights kv1=$kv; }
            what="serving $from tp $tp rank $rank"
            claim "$what: weights are 1/$tp" near "$weights" $((weights1 / tp))
            claim "$what: KV is 1/$tp" near "$kv" $((kv1 / tp))
            [ $from = hf ] && claim "$what: reads 1/$tp" near "$bytes" $((4 * total / tp)) 3
            [ $from/$tp = tp4/step-1/4 ] &&
                claim "$what: reads 1/4, a few blocks, and checks its share of the rest" at_most "$bytes" \
                    $((4 * total / tp + (12 * total - 4 * total / tp) / tp + 6 * block))
        done
    done
done

# ---- resuming: a rank reads its part of weights and moments, and checks its share of what it does not need
# ----
common=(--data "$TMP/text" --steps 2 --threads 1)
train again --resume "$TMP/tp4/step-1" --tp 4
claim "resuming ends well" [ $rc = 0 ]
for rank in 0 1 2 3; do
    claim "resuming at tp 4: rank $rank reads its part and checks its share" at_most \
        "$(read_by again $rank)" $((12 * total / 4 + 9 * total / 4 + 16 * block))
done
finish
