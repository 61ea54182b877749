# plan_lib.bash - the peak of the tracked allocator beside the plan of --dry-run. Includes train_lib.bash; uses
# ${common[@]}.
. "$(dirname "${BASH_SOURCE[0]}")/train_lib.bash"

# measured NAME CATEGORY: the peak of the rank whose whole is largest
measured() {
    grep '"when":"end"' "$TMP/$1.jsonl" | tr '{' '\n' |
        sed -n "s/.*\"total\":\[[0-9]*,\([0-9]*\)\].*\"$2\":\[[0-9]*,\([0-9]*\)\].*/\1 \2/p" | sort -n |
            tail -n 1 | cut -d' ' -f2
}
whole() {
    grep '"when":"end"' "$TMP/$1.jsonl" | tr '{' '\n' | sed -n 's/.*"total":\[[0-9]*,\([0-9]*\)\].*/\1/p' |
        sort -n | tail -n 1
}
planned() {
    sed -n "s/^$1 *\([0-9.]*\) \([kMG]*B\) a rank$/\1 \2/p" <<<"$plan" |
        awk '{ print $1 * ($2 ~ /G/ ? 1e9 : $2 ~ /M/ ? 1e6 : $2 ~ /k/ ? 1e3 : 1) }'
}
# near MEASURED PLANNED WHOLE: how many messages wait at one time is different in each run: 0.5 % of the whole
near() {
    awk -v a="${1:-0}" -v b="${2:-0}" -v w="$3" \
        'BEGIN { d = a > b ? a - b : b - a; exit !(d <= 0.05 * a || d <= 0.005 * w || (a < 0.02 * w && d <= 0.02 * w)) }'
}

declare -A acts             # measured, by layout
compare_layouts() {         # of its input, a layout a line
    local layout words plan all cat
    while read -r layout; do
        read -r -a words <<<"${layout//DISK/$TMP/disk}"
        plan=$("$BIN/ptrain" "${common[@]}" "${words[@]}" --dry-run)
        train one "${words[@]}"
        claim "$layout: runs" [ $rc = 0 ] || continue
        all=$(whole one) acts[$layout]=$(measured one acts)
        claim "$layout: the peak of all, $all bytes, as planned" near "$all" "$(planned memory)" "$all"
        for cat in params grads optim acts comm work save; do
            claim "$layout: $cat, $(measured one $cat) bytes of $all, as planned" near \
                "$(measured one $cat)" "$(planned $cat)" "$all"
        done
    done
}
