# serve_lib.bash - what the scripts about the server share: text, a small model trained on it, clients in Python whose claims count. Used by
# `. serve_lib.bash` (brings lib.bash). Without python3 a script ends here, with a line that says so.
#
#   . "$(dirname "$0")/../lib/serve_lib.bash"
#   trained --steps 4                          # into $TMP/run
#   asked serve_http.py "$TMP/run/step-4" 1    # its last line is added up
#   finish
here=$(cd "$(dirname "$0")" && pwd)
. "$(dirname "${BASH_SOURCE[0]}")/lib.bash"
python=${PYTHON:-python3}
command -v "$python" >/dev/null || { skip "no python3"; finish; }
export BIN no_proxy=127.0.0.1,localhost SHARDLINE_CACHE=$TMP/cache
for i in {1..700}; do echo "line $i: $((i * i)) is the square of $i"; done >"$TMP/text"

# trained [OUT] ARGS...: without a model there is nothing to serve
trained() {
    local out=run
    [[ $1 == --* ]] || { out=$1; shift; }
    run ptrain --data "$TMP/text" --out "$TMP/$out" --seq-len 64 --global-batch 4 "$@"
    claim "a model is trained" [ $rc = 0 ] || finish
}

# digest CHECKPOINT: of its weights
digest() { "$BIN/reshard" digest "$1" | sed -n 's/^weights_digest //p'; }

# asked SCRIPT ARGS...: a client beside the script that calls this; $what in front of what it says
asked() {
    local p f s
    "$python" -B "$here/$1" "${@:2}" >"$TMP/said" 2>&1
    grep -v '^[0-9]* passed, ' "$TMP/said" | sed "s/^/${what:+$what: }/"
    read -r p f s <<<"$(sed -n 's/^\([0-9]*\) passed, \([0-9]*\) failed, \([0-9]*\) skipped$/\1 \2 \3/p' "$TMP/said")"
    n_passed=$((n_passed + ${p:-0})) n_failed=$((n_failed + ${f:-1})) n_skipped=$((n_skipped + ${s:-0}))
}
