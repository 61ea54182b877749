#!/usr/bin/env bash
# all
# follow_all.sh - 20 versions under the load of 64 clients, at layouts that the trainer does not have, and cast to
# bf16; kills of either side: see follow_all.py.
. "$(dirname "$0")/../lib/serve_lib.bash"
trained --steps 21 --save-every 1 --keep 0 --ranks 2 --zero 1
for layout in "--tp 2 --max-batch 64" "--replicas 2 --pp 2 --follow-mode wait" "--tp 4 --cp 2 --speculate ngram" \
    "--tp 2 --dtype bf16 --follow-mode abort"; do
    what=$layout
    asked follow_all.py "$TMP" $layout --threads 1 --ctx 256
done
finish
