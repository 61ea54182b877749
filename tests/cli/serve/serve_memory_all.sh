#!/usr/bin/env bash
# all
# serve_memory_all.sh - a mixture of 1.0 billion parameters: what the ranks hold after prompts that want all
# log-probs is within 5 % of the plan, with whole experts and split ones; see serve_memory.py.
. "$(dirname "$0")/../lib/serve_lib.bash"
asked serve_memory.py "$TMP/model"
finish
