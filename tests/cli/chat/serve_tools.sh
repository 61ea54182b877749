#!/usr/bin/env bash
# quick
# serve_tools.sh - chats with tools: serve_tools.py. The model is a folder that reshard wrote, with a chat template put
# beside it; what it answers is written by the test.
. "$(dirname "$0")/../lib/serve_lib.bash"
trained --steps 2
run reshard --format hf "$TMP/run/step-2" "$TMP/model"
claim "and becomes a Hugging Face folder" [ $rc = 0 ] || finish
asked serve_tools.py "$TMP/model" "$TMP" "${tools_size:-quick}"
finish
