#!/usr/bin/env bash
# all
# serve_speculate_all.sh - serve_speculate.sh in every layout, and with a mixture of experts; then every answer
# of serve_bits, serve_chat and serve_load with drafts against the one without.
. "$(dirname "$0")/../lib/lib.bash"

# counted LABEL COMMAND...: runs a script in a folder of its own; adds up its last line
counted() {
    local what=$1 p f s
    shift
    rm -rf "$TMP/own"
    mkdir "$TMP/own"
    TMP=$TMP/own "$@" >"$TMP/said" 2>&1
    grep -v '^[0-9]* passed, ' "$TMP/said" | sed "s|^|$what: |"
    read -r p f s <<<"$(sed -n 's/^\([0-9]*\) passed, \([0-9]*\) failed, \([0-9]*\) skipped$/\1 \2 \3/p' \
        "$TMP/said")"
    n_passed=$((n_passed + ${p:-0})) n_failed=$((n_failed + ${f:-1})) n_skipped=$((n_skipped + ${s:-0}))
}

cli=$(cd "$(dirname "$0")/.." && pwd)
counted layouts env SERVE_SPECULATE=all bash "$cli/speculate/serve_speculate.sh"
for script in serve/serve_bits serve_http/serve_chat serve_http/serve_load; do
    export SERVE_ANSWERS=$TMP/answers-${script##*/}
    counted "$script" bash "$cli/$script.sh"
    claim "$script: its answers are written" [ -n "$(ls "$SERVE_ANSWERS"-* 2>/dev/null)" ]
    for how in "ngram ngram:4" "random ngram:5" "replay ngram:6" "always itself:3"; do
        counted "$script, $how" env SHARDLINE_DRAFTER="${how%% *}" PSERVE_ARGS="--speculate ${how#* }" \
            bash "$cli/$script.sh"
    done
done

# scripts that compare with the trainer, or with themselves
for script in serve/serve_window serve/serve_families serve/serve_context serve/serve_reload serve_http/serve_limits; do
    counted "$script, random" env -u SERVE_ANSWERS SHARDLINE_DRAFTER=random PSERVE_ARGS="--speculate ngram:4" \
        bash "$cli/$script.sh"
done
finish
