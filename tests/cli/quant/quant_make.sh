#!/usr/bin/env bash
# all
# quant_make.sh - what --quantize writes: codes by the rules of format/QUANT.md stated in torch, folders that
# transformers loads, with the logits of their dequantised folder. PEER_PYTHON=python that has torch,
# transformers 5.17 and compressed-tensors 0.19.
here=$(cd "$(dirname "$0")" && pwd)
python=${PEER_PYTHON:-python3}
. "$here/../lib/lib.bash"
cd "$TMP" || exit 1

"$python" -c 'import torch, safetensors, compressed_tensors, transformers' >/dev/null 2>&1 ||
    { skip "no torch, transformers and compressed-tensors here: set PEER_PYTHON"; finish; }
run "$python" -B "$here/quant_make.py" "$BIN/reshard" "$TMP"
claim "everything is tried" [ "$(grep -c '^[a-z0-9-]*: ' <<<"$out")" = 17 ]
while IFS= read -r line; do
    claim "$line" [ "${line##*: }" = ok ]
done < <(grep '^[a-z0-9-]*: ' <<<"$out")
finish
