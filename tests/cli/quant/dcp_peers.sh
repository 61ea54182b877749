#!/usr/bin/env bash
# all
# dcp_peers.sh - quantised checkpoints as torch's distributed checkpoints, bit for bit both ways: torch loads what
# reshard writes, reshard reads what torch saves. PEER_PYTHON=python that has torch 2.14 and safetensors.
here=$(cd "$(dirname "$0")" && pwd)
python=${PEER_PYTHON:-python3}
. "$here/../lib/lib.bash"
cd "$TMP" || exit 1

"$python" -c 'import torch, safetensors' >/dev/null 2>&1 || { skip "no torch and safetensors here: set PEER_PYTHON"; finish; }
forms="fp8-block fp8-tensor fp8-dot-scale nvfp4-modelopt mxfp4 gptq int4-pack"
# shellcheck disable=SC2086
run "$python" -B "$here/../lib/quant_make.py" sane "$TMP" 3 $forms
# shellcheck disable=SC2086
run "$python" -W ignore -B "$here/dcp_peers.py" "$BIN/reshard" "$TMP" $forms
claim "all forms are tried" [ "$(grep -c ': ' <<<"$out")" = 7 ]
while IFS= read -r line; do
    claim "$line" [ "${line##*: }" = ok ]
done < <(grep ': ' <<<"$out")
finish
