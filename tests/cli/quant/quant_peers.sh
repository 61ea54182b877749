#!/usr/bin/env bash
# all
# quant_peers.sh - values of quantised weights against the libraries that wrote them: transformers (FP8, MXFP4),
# compressed-tensors (packed integers, INT8, FP8, NVFP4, MXFP4, AWQ); and the bytes that --requantize gives back.
# PEER_PYTHON=python that has torch, transformers 5.17 and compressed-tensors 0.19.
here=$(cd "$(dirname "$0")" && pwd)
python=${PEER_PYTHON:-python3}
. "$here/../lib/lib.bash"
cd "$TMP" || exit 1

"$python" -c 'import torch, safetensors, compressed_tensors, transformers' >/dev/null 2>&1 ||
    { skip "no torch, transformers and compressed-tensors here: set PEER_PYTHON"; finish; }
run "$python" -B "$here/quant_peers.py" "$BIN/reshard" "$TMP"
claim "all forms are tried" [ "$(grep -c ': ' <<<"$out")" = 24 ]
while IFS= read -r line; do
    claim "${line%%: *}: ${line#*: }" [ "${line#*: }" = ok ]
done < <(grep ': ' <<<"$out")
finish
