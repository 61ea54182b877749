#!/usr/bin/env bash
# quick
# memplan.sh - the search: what it prints fits and is ranked, each row is what memplan says of that layout
# alone, and what cannot be is said.
. "$(dirname "$0")/../lib/lib.bash"

batch=(--seq-len 512 --global-batch 48)
run memplan --model 110m --gpus 8 --memory 4GB "${batch[@]}"
rows=$(sed -n '/^[0-9]/{/layouts fit/!p}' <<<"$out")
claim "a search over 8 GPUs prints ten layouts" [ "$rc/$(wc -l <<<"$rows")" = 0/10 ]
claim "ranked by the time of a step" [ \
    "$(awk '{ for (i = 1; i < NF; i++) if ($(i + 1) == "s") print $i }' <<<"$rows")" = \
        "$(awk '{ for (i = 1; i < NF; i++) if ($(i + 1) == "s") print $i }' <<<"$rows" | sort -g)" ]
claim "all fit" awk '{ for (i = 1; i < NF; i++) if ($(i + 1) == "GB" && $i > 4) exit 1 }' <<<"$rows"
claim "how many do not is said" grep -q '^[0-9]* layouts fit 4 GB, [0-9]* need more, [0-9]* cannot be' \
    <<<"$out"

# each row alone
while read -r _ tp pp dp zero micro rest; do
    way=(--schedule 1f1b) again=${rest%% GB*}
    case $rest in
    interleaved*) way=(--schedule interleaved --virtual-stages "$(cut -d' ' -f2 <<<"$rest")") ;;
    zero-bubble*) way=(--schedule zero-bubble) ;;
    esac
    case $again in *selective*) again=selective ;; *full*) again=full ;; *) again=none ;; esac
    run memplan --model 110m --gpus 8 --memory 4GB "${batch[@]}" --tp "$tp" --pp "$pp" --dp "$dp" --zero \
        "$zero" --micro-batch "$micro" "${way[@]}" --recompute $again
    claim "tp $tp pp $pp dp $dp zero $zero micro $micro ${way[*]} $again fits alone too" has "$out" \
        "fits         yes"
done <<<"$(head -n 4 <<<"$rows")"

# long sequences: cp is tried too, and each row is what memplan says of it alone
batch=(--seq-len 16384 --global-batch 8)
run memplan --model 1b --gpus 8 --memory 40GB "${batch[@]}"
rows=$(sed -n '/^[0-9]/{/layouts fit/!p}' <<<"$out" | awk '$4 > 1')
claim "of 16384 tokens: rows with cp 2 and more" [ "$rc/$(wc -l <<<"$rows")" != "0/0" -a -n "$rows" ]
while read -r _ tp pp cp dp zero micro rest; do
    again=none bytes=$(sed 's/.* \([0-9.]*\) GB.*/\1/' <<<"$rest")
    case $rest in *selective*) again=selective ;; *full*) again=full ;; esac
    run memplan --model 1b --gpus 8 --memory 40GB "${batch[@]}" --tp "$tp" --pp "$pp" --cp "$cp" --dp "$dp" --zero "$zero" \
        --micro-batch "$micro" --recompute $again
    claim "tp $tp pp $pp cp $cp dp $dp zero $zero $again: as large alone" awk -v a="$(sed -n 's/^memory *\([0-9.]*\) GB.*/\1/p' <<<"$out")" \
        -v b="$bytes" 'BEGIN { exit !(a > 0.99 * b && a < 1.01 * b) }'
    claim "and it says what it gathers" has "$out" "keys, values"
done <<<"$(grep -v -e interleaved -e zero-bubble <<<"$rows" | head -n 2)"
batch=(--seq-len 512 --global-batch 48)
run memplan --model 110m --gpus 6 --memory 80GB "${batch[@]}"
claim "six GPUs: degrees need not be powers of two" grep -q '^[0-9]* *[0-9]* *3 ' <<<"$out"
run memplan --model 110m --gpus 2 --memory 100MB "${batch[@]}"
claim "what fits nowhere is refused with the smallest" [ $rc = 2 ] &&
    claim "by name" has "$err" "the smallest needs"
run memplan --model 110m --gpus 2 --memory 4GB --seq-len 2048 --global-batch 16 --micro-batch 8
claim "where little fits, layers are computed again" grep -Eq 'selective|full' <<<"$out"
finish
