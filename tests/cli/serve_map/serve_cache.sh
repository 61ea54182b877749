#!/usr/bin/env bash
# quick waits
# serve_cache.sh - weights that are packed once for all starts (--cache): see serve_cache.py.
. "$(dirname "$0")/../lib/serve_lib.bash"
trained one --steps 2
trained other --steps 2 --seed 1
for name in one other; do
    run reshard "$TMP/$name/step-2" "$TMP/$name.hf" --format hf --weights-only
    claim "$name as a Hugging Face folder" [ $rc = 0 ]
done
if [ -n "${SERVE_CACHE:-}" ]; then
    trained narrow --steps 2 --dtype bf16
    run reshard "$TMP/narrow/step-2" "$TMP/quantised" --format hf --weights-only --quantize int8-g128
    claim "a quantised folder" [ $rc = 0 ]
    run reshard "$TMP/narrow/step-2" "$TMP/narrow.hf" --format hf --weights-only
    claim "bf16" [ $rc = 0 ]
fi
asked serve_cache.py "$TMP" "$TMP/one.hf" "$TMP/other.hf" ${SERVE_CACHE:+all}
finish
