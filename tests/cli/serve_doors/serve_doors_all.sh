#!/usr/bin/env bash
# all
# serve_doors_all.sh - serve_doors.py in further layouts.
. "$(dirname "$0")/../lib/serve_lib.bash"
trained --steps 2
run reshard --format hf "$TMP/run/step-2" "$TMP/model"
claim "and becomes a Hugging Face folder" [ $rc = 0 ] || finish
asked serve_doors.py "$TMP/model" "$TMP" "--tp 1" "--tp 2" "--tp 4 --prefill-chunk 16" "--pp 2" "--speculate ngram" "--replicas 2 --tp 2"
finish
