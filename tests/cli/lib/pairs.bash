# pairs.bash - runs of one family in which every pair of values of two dimensions occurs
# (../same_bits/pairs.py), against one rank.
. "$(dirname "${BASH_SOURCE[0]}")/train_lib.bash"
command -v python3 >/dev/null || { skip "no python3"; finish; }
text 5 60000 >"$TMP/text"
classes=
for class in avx512bf16 avx512 avx2 portable; do
    if SHARDLINE_ISA=$class "$BIN/ptrain" --version 2>/dev/null | grep -q "cpu class $class,"; then
        classes+=${classes:+,}$class
    else
        skip "no $class here"
    fi
done

# pairs dense|experts|bias FAMILY: trains four layers of it
pairs() {
    local kind=$1 name=$2 of now= experts environment layout
    family "$TMP/model.json" "$name"
    sed -i 's/"num_hidden_layers":2/"num_hidden_layers":4/' "$TMP/model.json"
    experts=$(grep -Eo '"(num_local|num|n_routed)_experts":[0-9]+' "$TMP/model.json" | grep -o '[0-9]*$')
    run python3 -B "$lib_dir/../same_bits/pairs.py" "$kind" "$classes" "${experts:-0}"
    claim "$name: every pair that can occur is in a run" [ $rc = 0 ]
    grep '^#' <<<"$out" | sed "s/^# /    $name: /"

    while IFS='|' read -r -u 3 of environment layout; do
        read -ra of <<<"$of"; read -ra environment <<<"$environment"; read -ra layout <<<"$layout"
        if [ "${of[*]}" != "$now" ]; then
            common=(--data "$TMP/text" --model "$TMP/model.json" --global-batch 16 "${of[@]}")
            reference --threads 1
            now=${of[*]}
        fi
        local -x "${environment[@]}"
        same "$name, $now, ${environment[*]}" "${layout[@]}"
        unset "${environment[@]%%=*}"
    done 3< <(grep -v '^#' <<<"$out")
}
