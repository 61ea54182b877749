#!/usr/bin/env bash
# all
# serve_adapters_all.sh - serve_adapters.sh in every layout, in both dtypes.
cli=$(cd "$(dirname "$0")" && pwd)
. "$cli/../lib/lib.bash"
for dtype in fp32 bf16; do
    mkdir "$TMP/$dtype"
    TMP=$TMP/$dtype SERVE_ADAPTERS=all SERVE_TRAINING="--dtype $dtype" bash "$cli/serve_adapters.sh" >"$TMP/said" 2>&1
    grep -v '^[0-9]* passed, ' "$TMP/said" | sed "s/^/$dtype: /"
    read -r p f s <<<"$(sed -n 's/^\([0-9]*\) passed, \([0-9]*\) failed, \([0-9]*\) skipped$/\1 \2 \3/p' "$TMP/said")"
    n_passed=$((n_passed + ${p:-0})) n_failed=$((n_failed + ${f:-1})) n_skipped=$((n_skipped + ${s:-0}))
done
finish
