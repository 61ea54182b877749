#!/usr/bin/env bash
# quick
# serve_doors.sh - /v1/responses and /v1/messages, from one process and from two: serve_doors.py. The model is a folder
# that reshard wrote, with a chat template put beside it.
. "$(dirname "$0")/../lib/serve_lib.bash"
trained --steps 2
run reshard --format hf "$TMP/run/step-2" "$TMP/model"
claim "and becomes a Hugging Face folder" [ $rc = 0 ] || finish
asked serve_doors.py "$TMP/model" "$TMP" "--tp 1" "--replicas 2"
finish
