#!/usr/bin/env bash
# quick
# serve_embeddings.sh - /v1/embeddings: serve_embeddings.py, from one rank and from two stages.
. "$(dirname "$0")/../lib/serve_lib.bash"
trained --steps 2
run reshard --format hf "$TMP/run/step-2" "$TMP/model"
claim "and becomes a Hugging Face folder" [ $rc = 0 ] || finish
asked serve_embeddings.py "$TMP/model" "--tp 1" "--pp 2 --prefill-chunk 16"
finish
