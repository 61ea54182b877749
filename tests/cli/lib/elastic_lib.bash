# elastic_lib.bash - runs whose layout changes while they train. Includes train_lib.bash.
. "$(dirname "${BASH_SOURCE[0]}")/train_lib.bash"

# wish LINES: the file of the layout, replaced in one step
wish() { printf '%s\n' "$@" >"$TMP/new" && mv "$TMP/new" "$TMP/layout.toml"; }

# begin NAME ARGS...: trains into $TMP/NAME in the background; fills $job
begin() {
    local name=$1
    shift
    rm -rf "$TMP/$name" "$TMP/$name.jsonl"
    "$BIN/ptrain" "${common[@]}" --out "$TMP/$name" --log "$TMP/$name.jsonl" --layout-file "$TMP/layout.toml" "$@" \
        >"$TMP/stdout" 2>"$TMP/stderr" &
    job=$! log=$TMP/$name.jsonl
}

# until_so COMMAND...: waits until it succeeds, or the run has ended
until_so() {
    for _ in $(seq 3000); do
        "$@" && return 0
        kill -0 "$job" 2>/dev/null || break
        sleep 0.02
    done
    "$@"
}

# saw TEXT: the run has said it
said() { grep -qF -- "$1" "$TMP/stderr"; }
saw() { until_so said "$1"; }

# stepped LAYOUTS: as many changes of layout as that are done, and a step behind the last
has_stepped() { awk -v n="$1" '/"event":"layout"/ { k++ } /"loss_bits"/ && k >= n { ok = 1 } END { exit !ok }' "$log"; }
stepped() { until_so has_stepped "$1"; }

# ends: waits for the run's end; fills $rc, and $state and $bits as train() does
ends() {
    wait "$job"
    rc=$?
    cp "$TMP/stdout" "$TMP/.out"
    cp "$TMP/stderr" "$TMP/.err"
    out=$(cat "$TMP/.out") err=$(cat "$TMP/.err")
    state=$(state_of "$out") bits=$(bits_of "$log")
}

# as_reference WHAT: it has ended well, with the reference's bits
as_reference() {
    ends
    claim "$1: ends well" [ $rc = 0 ] &&
        claim "$1: every loss and norm has the reference's bits" [ "$bits" = "$ref_bits" ] &&
        claim "$1: the final state has the reference's digest" [ "$state" = "$ref_state" ]
}

# stopped_as_reference WHAT: it is stopped, ends well, and has the bits of a run of as many steps that stayed as it was
stopped_as_reference() {
    kill -TERM "$job"
    ends
    claim "$1: ends well" [ $rc = 0 ]
    local run_state=$state run_bits=$bits
    reference --stop-after "$(wc -l <<<"$run_bits")"
    claim "$1: every loss and norm is there once, with the reference's bits" [ "$run_bits" = "$ref_bits" ] &&
        claim "$1: the final state has the reference's digest" [ "$run_state" = "$ref_state" ]
}
