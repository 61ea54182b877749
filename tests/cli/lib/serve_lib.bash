# serve_lib.bash - what the scripts about the server share: a text, a small model trained on it, clients in
# Python whose claims are counted. Includes lib.bash. Without python3 the script skips.
#
#   . "$(dirname "$0")/../lib/serve_lib.bash"
#   trained --steps 4                          # into $TMP/run
#   asked serve_http.py "$TMP/run/step-4" 1    # adds up its last line
#   finish
here=$(cd "$(dirname "$0")" && pwd)
. "$(dirname "${BASH_SOURCE[0]}")/lib.bash"
python=${PYTHON:-python3}
command -v "$python" >/dev/null || { skip "no python3"; finish; }
export BIN no_proxy=127.0.0.1,localhost SHARDLINE_CACHE=$TMP/cache
for i in {1..700}; do echo "line $i: $((i * i)) is the square of $i"; done >"$TMP/text"

# trained [OUT] ARGS...: trains a model into $TMP/OUT (run); the script ends when that fails
trained() {
    local out=run
    [[ $1 == --* ]] || { out=$1; shift; }
    run ptrain --data "$TMP/text" --out "$TMP/$out" --seq-len 64 --global-batch 4 "$@"
    claim "a model is trained" [ $rc = 0 ] || finish
}

# digest CHECKPOINT: prints the digest of its weights
digest() { "$BIN/reshard" digest "$1" | sed -n 's/^weights_digest //p'; }

# asked SCRIPT ARGS...: runs a client that lies beside the calling script; prefixes what it prints with $what
asked() {
    local p f s
    "$python" -B "$here/$1" "${@:2}" >"$TMP/said" 2>&1
    grep -v '^[0-9]* passed, ' "$TMP/said" | sed "s/^/${what:+$what: }/"
    read -r p f s <<<"$(sed -n 's/^\([0-9]*\) passed, \([0-9]*\) failed, \([0-9]*\) skipped$/\1 \2 \3/p' \
        "$TMP/said")"
    n_passed=$((n_passed + ${p:-0})) n_failed=$((n_failed + ${f:-1})) n_skipped=$((n_skipped + ${s:-0}))
}
