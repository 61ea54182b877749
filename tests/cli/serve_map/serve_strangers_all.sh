#!/usr/bin/env bash
# all
# serve_strangers_all.sh - folders of the serve format, of --kv-disk and --cache that no program of ours wrote: see
# serve_strangers.py.
. "$(dirname "$0")/../lib/serve_lib.bash"
trained one --steps 2
trained narrow --steps 2 --dtype bf16
run reshard "$TMP/one/step-2" "$TMP/one.serve" --format serve
claim "panels" [ $rc = 0 ]
run reshard "$TMP/narrow/step-2" "$TMP/narrow.serve" --format serve --quantize b12
claim "panels in 12 bits" [ $rc = 0 ]
run reshard "$TMP/one/step-2" "$TMP/one.hf" --format hf --weights-only
claim "a Hugging Face folder" [ $rc = 0 ]
asked serve_strangers.py "$TMP" "$TMP/one.serve" "$TMP/narrow.serve" "$TMP/one.hf"
finish
