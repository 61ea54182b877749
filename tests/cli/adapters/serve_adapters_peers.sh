#!/usr/bin/env bash
# all
# serve_adapters_peers.sh - log-probs of adapters that PEFT saved, served unmerged at several layouts with one
# set of bits, against PEFT and transformers: see serve_adapters_peers.py. PEER_PYTHON=python that has torch,
# transformers and peft.
. "$(dirname "$0")/../lib/serve_lib.bash"
peer=${PEER_PYTHON:-python3}
"$peer" -c 'import peft, torch, transformers' >/dev/null 2>&1 || { skip "no peft here: set PEER_PYTHON"; finish; }
cd "$TMP" || exit 1
export HF_HUB_OFFLINE=1
run "$peer" -B "$here/serve_adapters_peers.py" make cases
claim "PEFT makes adapters" [ $rc = 0 ]
asked serve_adapters_peers.py check cases
finish
