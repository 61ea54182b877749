#!/usr/bin/env bash
# all
# serve_embeddings_all.sh - /v1/embeddings: serve_embeddings.py in further layouts.
. "$(dirname "$0")/../lib/serve_lib.bash"
trained --steps 2
run reshard --format hf "$TMP/run/step-2" "$TMP/model"
claim "and becomes a Hugging Face folder" [ $rc = 0 ] || finish
asked serve_embeddings.py "$TMP/model" "--tp 1" "--tp 2" "--tp 4 --prefill-chunk 7" "--cp 2" "--pp 2" "--replicas 2" "--kv-memory 1400k --ctx 512"
finish
